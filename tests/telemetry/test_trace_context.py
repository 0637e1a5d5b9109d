"""The trace context in requests, messages and jobs: from the span of a producer to that of a handler.

White box: the headers that a sink is given for its items.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, TraceFlags, TraceState
from tests.http.http_help import Server
from tests.kafka.source.kafka_help import new_name, new_topic
from tests.nats.sink.nats_help import new_stream

from sluicegate import (
    Batch,
    Batcher,
    Consumer,
    DeadLetter,
    FanOut,
    Limits,
    Outcome,
    PermanentError,
    RowBatch,
    WriteResult,
    send,
    stack,
)
from sluicegate._core.trace_context import TRACE_HEADERS, item_traces, request_trace
from sluicegate.flow import Spool
from sluicegate.http import HttpAccess, HttpSink
from sluicegate.kafka import KafkaSink, KafkaSource
from sluicegate.nats import JetStreamSource, NatsSink
from sluicegate.postgres import (
    NewMessage,
    PostgresQueueSink,
    PostgresQueueSource,
    PostgresStreamSink,
    PostgresStreamSource,
    QueueAdmin,
    StreamLog,
)
from sluicegate.sinks import Combine, MemorySink
from sluicegate.telemetry import ConsumerTracing, Tracing, traced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message, Sink
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedKafka, EmbeddedNats, FakeClock

EXPORTED = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTED))
TRACER = PROVIDER.get_tracer("service")
OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def nothing_exported() -> None:
    EXPORTED.clear()


def spans(name: str) -> list[ReadableSpan]:
    return [span for span in EXPORTED.get_finished_spans() if span.name.split(" ")[0] == name]


def context_of(name: str) -> SpanContext:
    (span,) = spans(name)
    context = span.get_span_context()
    assert context is not None
    return context


def parent_of(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


# -- through servers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A destination, and the source that reads it."""

    system: str
    sink: Callable[[Any], Sink[Any]]
    """The sink, with a function for the headers of an item, or `None`."""
    source: Any


@pytest.fixture(params=["kafka", "nats", "jobs", "messages"])
def make_way(request: pytest.FixtureRequest) -> Callable[[], Awaitable[Way]]:
    kind: str = request.param
    name = {"kafka": "broker", "nats": "embedded_nats"}.get(kind, "log")
    server: Any = request.getfixturevalue(name)
    if kind == "kafka":
        return lambda: _of_kafka(server)
    return lambda: _of_nats(server) if kind == "nats" else _of_postgres(kind, server)


async def _of_kafka(broker: EmbeddedKafka) -> Way:
    topic, where = await new_topic(broker), broker.bootstrap
    return Way(
        "kafka",
        lambda headers: KafkaSink(topic, bootstrap=where, headers=headers),
        KafkaSource(topic, bootstrap=where, group=new_name("g")),
    )


async def _of_nats(server: EmbeddedNats) -> Way:
    stream = await new_stream(server)
    return Way(
        "nats",
        lambda headers: NatsSink(f"{stream}.a", servers=server.url, headers=headers),
        JetStreamSource(stream, servers=server.url, durable="d"),
    )


async def _of_postgres(kind: str, log: Log) -> Way:
    if kind == "jobs":
        async with QueueAdmin(log.dsn, schema=log.schema) as admin:
            await admin.create("jobs")
        return Way(
            "postgresql",
            lambda headers: PostgresQueueSink(
                log.dsn, schema=log.schema, queue="jobs", headers=headers
            ),
            PostgresQueueSource(log.dsn, schema=log.schema, queue="jobs"),
        )
    return Way(
        "postgresql",
        lambda headers: PostgresStreamSink(
            log.dsn,
            schema=log.schema,
            stream=lambda _: "order-1",
            type=lambda _: "Placed",
            metadata=headers,
        ),
        PostgresStreamSource(log.dsn, schema=log.schema, subscription="s"),
    )


async def consumed(source: Any, system: str, number: int) -> list[Message]:
    """Handle this number of messages; return them in the order of their values."""
    tracing = ConsumerTracing(system=system, tracer_provider=PROVIDER)
    consumer = Consumer(source, observers=[tracing])
    found: list[Message] = []

    async def handle(message: Message) -> None:
        found.append(message)
        if len(found) == number:
            consumer.stop()

    async with asyncio.timeout(60.0):
        await consumer.run(handle)
    return sorted(found, key=lambda message: str(message.value))


async def write(sink: Sink[Any], *items: Any) -> None:
    async with Batcher(sink, limits=Limits(max_items=len(items))) as batcher:
        await batcher.add_many(items)
    assert batcher.report is not None
    assert batcher.report.tally.delivered == len(items)


async def test_the_span_of_a_handler_links_to_that_of_the_item_or_of_its_write(
    make_way: Callable[[], Awaitable[Way]], real_clock: LoopClock
) -> None:
    way = await make_way()
    sink = stack(way.sink(None), Tracing(tracer_provider=PROVIDER))
    with TRACER.start_as_current_span("request"):
        items = [traced({"n": 0}, span=None), {"n": 1}]
    await write(sink, *items)
    messages = await consumed(way.source, way.system, 2)
    offset = "messaging.kafka.offset" if way.system == "kafka" else "sluicegate.message.offset"
    handled = {
        (span.attributes or {})[offset]: [link.context.span_id for link in span.links]
        for span in spans("process")
    }
    assert [handled[message.offset] for message in messages] == [
        [context_of("request").span_id],
        [context_of("batcher.flush").span_id],
    ]


async def test_an_own_header_is_kept_and_nothing_is_added_to_it(
    make_way: Callable[[], Awaitable[Way]], real_clock: LoopClock
) -> None:
    way = await make_way()
    given = {"Traceparent": OWN, "tenant": "acme"}
    sink = stack(way.sink(lambda item: given if item["n"] else None), _with_state())
    await write(sink, {"n": 0}, {"n": 1})
    messages = await consumed(way.source, way.system, 2)
    found = [
        {
            name: value
            for name, value in message.headers
            if name.lower() in {*TRACE_HEADERS, "tenant"}
        }
        for message in messages
    ]
    assert found == [
        {"traceparent": OWN.encode(), "tracestate": b"vendor=1"},
        {"Traceparent": OWN.encode(), "tenant": b"acme"},
    ]


def _with_state() -> Tracing:
    """Every item has a context with a state."""
    context = SpanContext(
        int(OWN[3:35], 16),
        int(OWN[36:52], 16),
        is_remote=True,
        trace_flags=TraceFlags(1),
        trace_state=TraceState([("vendor", "1")]),
    )
    return Tracing(tracer_provider=PROVIDER, context_of=lambda _: context)


async def test_a_request_is_part_of_the_trace_of_its_write(fake_clock: FakeClock) -> None:
    """The items' traces are linked to it; a header of the access is kept."""
    server = Server()
    for headers in ({}, {"Traceparent": OWN}):
        access = HttpAccess(f"{server.url}/in", client=server.client, headers=headers)
        await write(stack(HttpSink(access), _with_state()), "a", "b")
    flush = spans("batcher.flush")[0].get_span_context()
    assert flush is not None
    parents = [request.headers["traceparent"] for request in server.requests]
    assert parents == [parent_of(flush), OWN]
    assert not any("tracestate" in request.headers for request in server.requests)


async def test_nothing_is_attached_without_a_tracer_or_if_it_is_switched_off(
    fake_clock: FakeClock,
) -> None:
    server = Server()
    sink = HttpSink(HttpAccess(f"{server.url}/in", client=server.client))
    off = TracerProvider(sampler=ALWAYS_OFF)
    for tracing in (
        [],
        [Tracing(tracer_provider=PROVIDER, propagate=False)],
        [Tracing(tracer_provider=off)],
    ):
        with TRACER.start_as_current_span("request"):
            await write(stack(sink, *tracing), "a")
    assert len(server.requests) == 3
    assert not any("traceparent" in request.headers for request in server.requests)


# -- messages of a log -----------------------------------------------------------------------------


async def test_a_message_of_another_attempt_has_the_same_contents_in_another_trace(
    log: Log, real_clock: LoopClock
) -> None:
    """The first trace is kept."""
    ident = "6f1c9a4e-0f0e-4a57-9d5c-0a4a3f4b8f55"
    sink = PostgresStreamSink(log.dsn, schema=log.schema, stream="stream", type="type", id="id")
    item = {"stream": "order-1", "type": "Placed", "id": ident}
    async with stack(sink, Tracing(tracer_provider=PROVIDER)) as it:  # type: ignore[attr-defined]
        for _ in range(2):
            assert await send(it, RowBatch([item])) == {}
    placed = NewMessage("Placed", item, {"tenant": "acme"})
    again = replace(placed, id="6f1c9a4e-0f0e-4a57-9d5c-0a4a3f4b8f56")
    async with log.connected() as con:
        for number in range(2):
            with TRACER.start_as_current_span(f"request{number}"):
                (appended,) = await StreamLog(log.schema).append(con, "order-2", again)
                assert appended.is_new is (number == 0)
                await StreamLog(log.schema, propagate=False).append(con, "order-3", placed)
        rows = await con.fetch(f"SELECT metadata FROM {log.sql}.message ORDER BY position")
    first = spans("batcher.flush")[0].get_span_context()
    assert first is not None
    assert [json.loads(row[0]) for row in rows] == [
        {"traceparent": parent_of(first)},
        {"tenant": "acme", "traceparent": parent_of(context_of("request0"))},
        *[{"tenant": "acme"}] * 2,
    ]


async def test_a_spool_stores_a_traced_item_without_its_context(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    sent = MemorySink[Any]()
    sink = stack(sent, Tracing(tracer_provider=PROVIDER))
    async with Batcher(sink, spool=Spool(tmp_path)) as batcher:
        await batcher.add(traced({"n": 0}, tracer_provider=PROVIDER))
    assert sent.items == [{"n": 0}]


# -- items -----------------------------------------------------------------------------------------


async def test_an_item_keeps_its_trace_on_every_way(fake_clock: FakeClock) -> None:
    """White box: combined, on branches, and as a dead letter; a batch of other items has the trace
    of the write.
    """
    seen: dict[str, Any] = {}

    def sink(name: str, refused: Any = None) -> Any:
        async def write(batch: Batch[Any]) -> WriteResult:
            traces = item_traces(batch) or [{}] * len(batch)
            own = [trace.get("traceparent") for trace in traces]
            seen[name] = dict(zip(map(str, batch), own, strict=True))
            return WriteResult.failed(
                batch,
                {i: PermanentError("no") for i, item in enumerate(batch) if item == refused},
            )

        return write

    async def letters(batch: Batch[Any]) -> None:
        other = RowBatch("wxyz")
        for name, each in (("letters", batch), ("other batch", other)):
            seen[name] = [trace["traceparent"] for trace in item_traces(each) or ()]
        seen["request"] = request_trace()["traceparent"]

    both = FanOut(sink("first", "c"), sink("second"))
    merged = Combine(stack(both, DeadLetter(letters)), key=str.lower, merge=min)
    items: list[Any] = ["a", "b"]
    for name in ("A", "c"):
        with TRACER.start_as_current_span(f"request-{name}"):
            items.append(traced(name, span=None))
    async with Batcher(
        stack(merged, Tracing(tracer_provider=PROVIDER)), limits=Limits(max_items=4)
    ) as batcher:
        receipts = [await batcher.submit(item) for item in items]
        await asyncio.gather(*receipts, return_exceptions=True)
    assert [receipt.outcome for receipt in receipts][3] is Outcome.DEAD_LETTERED
    flush = parent_of(context_of("batcher.flush"))
    of_a, of_c = parent_of(context_of("request-A")), parent_of(context_of("request-c"))
    assert seen["first"] == seen["second"] == {"A": of_a, "b": flush, "c": of_c}
    assert seen["letters"] == [of_c]
    assert seen["other batch"] == [flush] * 4
    assert seen["request"] == flush
    assert item_traces(RowBatch("a")) is None
