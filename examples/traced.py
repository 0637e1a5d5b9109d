"""Two requests add an item each; one write of both, whose span links to the requests."""

import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sluicegate import Batcher, Retry, Timeout, stack
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import Tracing, traced


async def main() -> None:
    sink = stack(MemorySink[dict[str, int]](), Timeout(5.0), Retry(), Tracing())
    async with Batcher(sink, name="audit") as batcher:
        for number in range(2):
            with trace.get_tracer("service").start_as_current_span(f"request {number}"):
                await batcher.add(traced({"id": number}))


if __name__ == "__main__":
    spans = InMemorySpanExporter()  # a service has an exporter to its collector here
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    asyncio.run(main())

    ended = spans.get_finished_spans()
    names = {span.context.span_id: span.name for span in ended}
    traces = {span.context.trace_id: span.name for span in ended if span.parent is None}
    for span in ended:
        if span.parent is not None:
            print(f"{span.name}: in {names[span.parent.span_id]}")
        if span.links:
            links = ", ".join(traces[link.context.trace_id] for link in span.links)
            print(f"{span.name}: links to the traces of {links}")
