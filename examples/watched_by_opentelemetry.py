"""A batcher whose metrics go to OpenTelemetry."""

import asyncio

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from sluicegate import Batcher, Limits
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import OpenTelemetryObserver


async def main() -> None:
    reader = InMemoryMetricReader()  # a service has a reader here that exports
    observers = [OpenTelemetryObserver(MeterProvider([reader]))]
    limits = Limits(max_items=3, max_delay=60)
    async with Batcher(
        MemorySink[int](), name="audit", limits=limits, observers=observers
    ) as batcher:
        await batcher.add_many(range(5))
    data = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
        if metric.name == "batcher.flush":
            for point in metric.data.data_points:
                assert isinstance(point, NumberDataPoint)
                print(metric.name, dict(point.attributes or {}), point.value)


if __name__ == "__main__":
    asyncio.run(main())
