"""OpenTelemetry metrics: the same values as Prometheus's for the same run.

White box: the table of metrics.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from prometheus_client import CollectorRegistry
from tests.telemetry.scenes import every_state

from sluicegate import Batcher, ConfigError, Limits, Outcome, stack
from sluicegate.telemetry import Observed, OpenTelemetryObserver, PrometheusObserver
from sluicegate.telemetry.batcher_metrics import BATCHER
from sluicegate.telemetry.readings import OTHER
from sluicegate.testing import BlockingSink, FakeSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import FakeClock

Series = tuple[str, frozenset[tuple[str, str]]]

METRICS = (*BATCHER.metrics, *BATCHER.by_tenant)


def from_prometheus(families: Iterable[Any]) -> dict[Series, float]:
    """Samples without creation times and empty histogram buckets."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def from_otel(reader: InMemoryMetricReader) -> dict[Series, float]:
    """The data points with their Prometheus names."""
    by_name = {each.otel_name: each for each in METRICS}
    found: dict[Series, float] = {}
    for metric in metrics_of(reader):
        family = by_name[metric.name]
        assert (metric.unit, metric.description) == (family.unit, family.text)
        for point in metric.data.data_points:
            given = {name.replace(".", "_"): str(value) for name, value in point.attributes.items()}
            labels = frozenset(given.items())
            if isinstance(point, HistogramDataPoint):
                bounds = [*map(float, point.explicit_bounds), float("inf")]
                total = 0
                for bound, count in zip(bounds, point.bucket_counts, strict=True):
                    total += count
                    le = "+Inf" if bound == float("inf") else repr(bound)
                    found[f"{family.name}_bucket", labels | {("le", le)}] = total
                found[f"{family.name}_count", labels] = point.count
                found[f"{family.name}_sum", labels] = point.sum
            else:
                total_suffix = "_total" if getattr(metric.data, "is_monotonic", False) else ""
                found[family.name + total_suffix, labels] = point.value
    return found


def metrics_of(reader: InMemoryMetricReader) -> list[Any]:
    data = reader.get_metrics_data()
    if data is None:
        return []
    return [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


async def test_every_family_has_the_values_of_prometheus(fake_clock: FakeClock) -> None:
    """Batchers in every state that has an alert; open, and closed."""
    reader, registry = InMemoryMetricReader(), CollectorRegistry()
    provider = MeterProvider(metric_readers=[reader])
    async with every_state(
        fake_clock,
        lambda: [
            PrometheusObserver(registry, tenants=2),
            OpenTelemetryObserver(provider, tenants=2),
        ],
    ):
        for _ in range(2):  # a second collection returns the same
            expected, found = from_prometheus(registry.collect()), from_otel(reader)
            empty = {key for key in expected if key not in found}
            assert all(expected[key] == 0 for key in empty)
            assert all("_seconds" in name and "flush_duration" in name for name, _ in empty), empty
            assert found == {
                key: pytest.approx(value) for key, value in expected.items() if key in found
            }
            assert len(found) > 500
    names = {metric.name for metric in metrics_of(reader)}
    states = {each.otel_name for each in METRICS if each.kind in {"gauge", "max"}}
    assert not names & states, "closed batchers have no state"
    totals = {key: value for key, value in from_otel(reader).items() if "_total" in key[0]}
    closed = from_prometheus(registry.collect())
    assert totals == {key: value for key, value in closed.items() if "_total" in key[0]}
    provider.shutdown()


async def test_the_collectors_exporter_makes_the_names_of_prometheus_again(
    fake_clock: FakeClock,
) -> None:
    """So the alert rules also fit OpenTelemetry metrics in Prometheus."""
    exporter = pytest.importorskip("opentelemetry.exporter.prometheus")
    own, other = CollectorRegistry(), CollectorRegistry()
    reader = exporter.PrometheusMetricReader(
        disable_target_info=True, scope_info_enabled=False, registry=other
    )
    provider = MeterProvider(metric_readers=[reader])
    async with every_state(
        fake_clock,
        lambda: [PrometheusObserver(own, tenants=2), OpenTelemetryObserver(provider, tenants=2)],
    ):
        expected, found = from_prometheus(own.collect()), from_prometheus(other.collect())
        assert {name for name, _ in found} == {name for name, _ in expected}
        same = {key: value for key, value in expected.items() if key in found}
        assert {key: found[key] for key in same} == pytest.approx(same)
    provider.shutdown()


async def test_another_thread_may_collect(real_clock: LoopClock) -> None:
    """Like the SDK's periodic exporter; a batcher inside a step does not make it fail."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    done = threading.Event()
    failed: list[BaseException] = []
    enqueued: list[float] = []

    def collect() -> None:
        try:
            while not done.is_set():
                found = from_otel(reader)
                key = ("batcher_enqueued_total", frozenset({("name", "audit")}))
                enqueued.append(found.get(key, 0))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=collect)
    async with Batcher(
        FakeSink[int](),
        name="audit",
        limits=Limits(max_items=3),
        observers=[OpenTelemetryObserver(provider)],
    ) as batcher:
        thread.start()
        for item in range(2_000):
            await batcher.add(item)
            if item % 50 == 0:
                await asyncio.sleep(0)
    done.set()
    thread.join()
    provider.shutdown()
    assert failed == []
    assert enqueued == sorted(enqueued)


async def test_tenants_are_bounded(fake_clock: FakeClock) -> None:
    """An SDK forgets no attributes, so at most ten times as many tenants are shown; all items are
    counted.
    """
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    async with Batcher(
        FakeSink[int](),
        name="audit",
        tenant=lambda item: f"t{item}",
        limits=Limits(max_items=5),
        observers=[OpenTelemetryObserver(provider, tenants=2)],
    ) as batcher:
        for round_ in range(100):
            await batcher.add_many([round_] * (round_ + 1))
    found = {
        dict(labels)["tenant"]: value
        for (name, labels), value in from_otel(reader).items()
        if name == "batcher_tenant_items_total" and ("outcome", "delivered") in labels
    }
    assert OTHER in found
    assert len(found) <= 21
    assert sum(found.values()) == sum(range(101))
    provider.shutdown()


async def test_inside_a_stack(fake_clock: FakeClock) -> None:
    """`Observed(OpenTelemetryObserver(name=...))` measures a sink."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    sink = stack(FakeSink[int](), Observed(OpenTelemetryObserver(provider, name="tries")))
    async with Batcher(sink, limits=Limits(max_items=2)) as batcher:
        await batcher.add_many(range(4))
    found = from_otel(reader)
    assert found["batcher_batch_size_items_sum", frozenset({("name", "tries")})] == 4
    assert batcher.tally().of(Outcome.DELIVERED) == 4
    provider.shutdown()


def test_watching_keeps_no_batcher_alive() -> None:
    """A batcher dropped with items inside still reports it."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    holder: list[Batcher[int]] = []

    async def main() -> None:
        batcher = Batcher[int](
            BlockingSink(), name="audit", observers=[OpenTelemetryObserver(provider)]
        )
        await batcher.__aenter__()
        await batcher.add(1)
        assert from_otel(reader)["batcher_queue_depth", frozenset({("name", "audit")})] == 1
        holder.append(batcher)
        del batcher
        with pytest.warns(ResourceWarning, match="dropped with items inside"):
            holder.clear()
        gc.collect()

    asyncio.run(main())
    assert from_otel(reader)["batcher_enqueued_total", frozenset({("name", "audit")})] == 1
    provider.shutdown()


def test_mistakes_and_copies() -> None:
    """An invalid argument, and an observer sent to another process."""
    with pytest.raises(ConfigError, match="name="):
        OpenTelemetryObserver(name="")
    with pytest.raises(ConfigError, match="tenants=-1"):
        OpenTelemetryObserver(tenants=-1)
    copied = pickle.loads(pickle.dumps(OpenTelemetryObserver(name="audit")))
    assert repr(copied) == "OpenTelemetryObserver(name='audit')"
