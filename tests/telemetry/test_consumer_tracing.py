"""Spans of handlers, linked to the producers' spans.

White box: the type of a watch, which no package exports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sluicegate import Backoff, ConfigError, Consumer, Nak, RetryPolicy, Terminate
from sluicegate.consumer import ConsumerObserver, MemoryLog, MemorySource, Record
from sluicegate.telemetry import ConsumerTracing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate._core.observer import HandlerWatch
    from sluicegate.testing import FakeClock

EXPORTED = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTED))
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01".encode())
SECRET = "4111-1111"


@pytest.fixture(autouse=True)
def nothing_exported() -> None:
    EXPORTED.clear()


def record(
    offset: int, headers: Sequence[tuple[str, Any]] = (), key: object = "a", partition: int = 0
) -> Record:
    return Record("orders", partition, offset, key, SECRET.encode(), headers)


async def consume(
    clock: FakeClock,
    given: Sequence[Record],
    handler: Any,
    size: int | None = None,
    **options: Any,
) -> list[ReadableSpan]:
    """Handle these records; return their spans."""
    source = MemorySource(MemoryLog(given), ends=True, clock=clock)
    observers = [ConsumerTracing(tracer_provider=PROVIDER, **options)]
    retry = RetryPolicy(
        attempts=2, unlisted_attempts=2, backoff=Backoff(base=0.1, longest=0.1, jitter="none")
    )
    consumer = Consumer(
        source, name="billing", clock=clock, poison="skip", retry=retry, observers=observers
    )
    if size is None:
        await consumer.run(handler)
    else:
        await consumer.run_batch(handler, size=size)
    return [span for span in EXPORTED.get_finished_spans() if span.name.startswith("process")]


def trace_ids(span: ReadableSpan) -> list[str]:
    return [trace.format_trace_id(link.context.trace_id) for link in span.links]


def contexts_of(*spans: ReadableSpan) -> list[int]:
    """The contexts of spans."""
    return [context.span_id for span in spans if (context := span.get_span_context()) is not None]


async def test_a_message_has_a_span_linked_to_its_producer(fake_clock: FakeClock) -> None:
    """consumer/O32: spans of the handler are inside it."""
    current: list[int] = []

    async def handler(message: Message) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    (span,) = await consume(fake_clock, [record(7, [PARENT])], handler, group="invoices")
    assert (span.name, span.kind, span.parent) == ("process orders", SpanKind.CONSUMER, None)
    assert [trace.format_span_id(link.context.span_id) for link in span.links] == [SPAN]
    assert trace_ids(span) == [TRACE]
    assert contexts_of(span) == current
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "invoices",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 7,
        "sluicegate.consumer.name": "billing",
        "sluicegate.message.attempt": 1,
        "sluicegate.outcome": "ack",
    }


async def test_the_trace_of_the_producer_goes_on_if_asked_for(fake_clock: FakeClock) -> None:
    async def handler(message: Message) -> None:
        assert baggage.get_baggage("tenant") == "acme"

    headers = [PARENT, ("baggage", b"tenant=acme")]
    (span,) = await consume(fake_clock, [record(0, headers)], handler, as_child=True)
    assert span.parent is not None
    assert trace.format_span_id(span.parent.span_id) == SPAN
    assert trace_ids(span) == [TRACE]
    assert span.status.status_code is StatusCode.UNSET


async def test_a_span_around_the_run_is_no_parent(fake_clock: FakeClock) -> None:
    """A consumer runs for days; its messages are not part of the trace that started it."""
    with PROVIDER.get_tracer("t").start_as_current_span("startup"):

        async def handler(message: Message) -> None:
            return None

        (span,) = await consume(fake_clock, [record(0)], handler)
    assert span.parent is None
    assert span.links == ()


async def test_the_span_is_current_no_longer_than_its_turn(fake_clock: FakeClock) -> None:
    """An earlier observer receives the end of the turn outside the span."""
    valid: list[bool] = []

    class Outer(ConsumerObserver):
        def handling(self, name: str, *, is_batch: bool) -> HandlerWatch:
            return lambda _: (
                lambda _: valid.append(trace.get_current_span().get_span_context().is_valid)
            )

    async def handler(message: Message) -> None:
        valid.append(trace.get_current_span().get_span_context().is_valid)

    source = MemorySource(MemoryLog([record(0, [PARENT])]), ends=True, clock=fake_clock)
    observers = [Outer(), ConsumerTracing(tracer_provider=PROVIDER)]
    await Consumer(source, clock=fake_clock, observers=observers).run(handler)
    assert valid == [True, False]


async def test_each_try_has_a_span_and_its_error_shows_no_values(fake_clock: FakeClock) -> None:
    """A `ValueError` quotes its argument: its type and place are shown, and no event is
    recorded.
    """

    async def handler(message: Message) -> None:
        raise ValueError(bytes(message.value).decode())

    first, second = await consume(fake_clock, [record(0)], handler)
    for attempt, span in enumerate((first, second), 1):
        assert span.status.status_code is StatusCode.ERROR
        attributes = dict(span.attributes or {})
        assert attributes["error.type"] == "ValueError"
        assert attributes["sluicegate.outcome"] == "error"
        assert attributes["sluicegate.message.attempt"] == attempt
        assert SECRET not in span.to_json()


@pytest.mark.parametrize(
    ("result", "outcome", "kind"),
    [
        (Nak(error=KeyError(SECRET)), "nak", "KeyError"),
        (Terminate("no"), "terminate", "PoisonError"),
        (3, "invalid", "invalid"),
    ],
    ids=str,
)
async def test_a_result_that_is_no_acknowledgement_is_an_error(
    fake_clock: FakeClock, result: object, outcome: str, kind: str
) -> None:
    async def handler(message: Message) -> object:
        return result

    span = (await consume(fake_clock, [record(0)], handler))[0]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["sluicegate.outcome"] == outcome
    assert (span.attributes or {})["error.type"] == kind
    assert SECRET not in span.to_json()


async def test_a_batch_has_one_span_with_a_link_to_each_trace(fake_clock: FakeClock) -> None:
    """consumer/O32: a trace is linked once; messages without a context are not linked."""
    other = TRACE[::-1]
    given = [
        record(0, [PARENT]),
        record(1, [PARENT]),
        record(2, [("Traceparent", f"00-{other}-{SPAN}-01".encode())]),
        record(3),
    ]

    async def handler(batch: list[Message]) -> None:
        return None

    (span,) = await consume(fake_clock, given, handler, size=4)
    assert span.name == "process orders"
    assert trace_ids(span) == [TRACE, other]
    attributes = dict(span.attributes or {})
    assert attributes["messaging.batch.message_count"] == 4
    assert attributes["messaging.destination.partition.id"] == "0"
    assert "messaging.kafka.offset" not in attributes


async def test_links_beyond_the_most_are_counted(fake_clock: FakeClock) -> None:
    given = [
        record(offset, [("traceparent", f"00-{offset + 1:032x}-{SPAN}-01".encode())])
        for offset in range(5)
    ]

    async def handler(batch: list[Message]) -> None:
        return None

    (span,) = await consume(fake_clock, given, handler, size=5, max_links=2)
    assert len(span.links) == 2
    assert (span.attributes or {})["sluicegate.links.omitted"] == 3


async def test_a_batch_of_several_partitions_names_none(fake_clock: FakeClock) -> None:
    given = [record(0), record(0, partition=1)]

    async def handler(batch: list[Message]) -> None:
        return None

    (span,) = await consume(fake_clock, given, handler, size=2)
    assert "messaging.destination.partition.id" not in (span.attributes or {})


@pytest.mark.parametrize(
    "headers",
    [[("traceparent", b"nonsense")], [("traceparent", b"\xff\xfe")], [("traceparent", None)], []],
    ids=["nonsense", "bytes", "null", "none"],
)
async def test_headers_without_a_usable_context_make_no_link(
    fake_clock: FakeClock, headers: list[tuple[str, Any]]
) -> None:
    handled: list[int] = []

    async def handler(message: Message) -> None:
        handled.append(message.offset)

    (span,) = await consume(fake_clock, [record(0, headers)], handler)
    assert span.links == ()
    assert handled == [0]


async def test_a_propagator_that_raises_fails_no_message(fake_clock: FakeClock) -> None:
    class Broken:
        def extract(self, carrier: object, context: object = None, getter: object = None) -> Any:
            raise RuntimeError("broken")

    handled: list[int] = []

    async def handler(message: Message) -> None:
        handled.append(message.offset)

    given = [record(0, [PARENT]), record(1, [PARENT])]
    broken: Any = Broken()
    assert await consume(fake_clock, given, handler, propagator=broken) == []
    assert handled == [0, 1]


async def test_a_plain_function_in_a_thread_sees_the_span(fake_clock: FakeClock) -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    (span,) = await consume(fake_clock, [record(0, [PARENT])], handler)
    assert contexts_of(span) == seen


async def test_an_offset_of_another_system_has_a_name_of_ours(fake_clock: FakeClock) -> None:
    async def handler(message: Message) -> None:
        return None

    (span,) = await consume(fake_clock, [record(5)], handler, system="nats")
    attributes = dict(span.attributes or {})
    assert (attributes["messaging.system"], attributes["sluicegate.message.offset"]) == ("nats", 5)
    assert "messaging.kafka.offset" not in attributes


@pytest.mark.parametrize("bad", [{"system": ""}, {"group": ""}, {"max_links": 0}], ids=str)
def test_a_bad_argument_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ConsumerTracing(**bad)
