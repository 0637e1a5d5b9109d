"""Traces: one span per write, linked to the spans of its items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from sluicegate import (
    Batcher,
    ConfigError,
    DeadLetter,
    FanOut,
    Limits,
    PermanentError,
    Retry,
    stack,
)
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import Tracing, traced
from sluicegate.testing import FakeSink, ScriptedSink, fail, partial

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

EXPORTED = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTED))


@pytest.fixture(autouse=True)
def nothing_exported() -> None:
    EXPORTED.clear()


def spans(name: str) -> list[ReadableSpan]:
    return [span for span in EXPORTED.get_finished_spans() if span.name == name]


def contexts(name: str) -> list[Any]:
    return [span.get_span_context() for span in spans(name)]


def link(item: Any, name: str = "batcher.add") -> Any:
    return traced(item, span=name, tracer_provider=PROVIDER)


async def write(sink: Any, items: list[Any]) -> Any:
    async with Batcher(sink, limits=Limits(max_items=len(items)), name="audit") as batcher:
        await batcher.add_many(items)
        await batcher.flush()
        return await batcher.shutdown()


async def test_the_flush_span_links_to_every_item(fake_clock: FakeClock) -> None:
    """B-T23, batcher/B36: links are the items' span contexts; inner sinks receive plain items."""
    sink: FakeSink[str] = FakeSink()
    await write(stack(sink, Tracing(tracer_provider=PROVIDER)), [link("a"), link("b"), "plain"])
    (flush,) = spans("batcher.flush")
    assert [each.context for each in flush.links] == contexts("batcher.add")
    assert flush.parent is None
    assert sink.applied == ["a", "b", "plain"]
    attributes = dict(flush.attributes or {})
    assert attributes.pop("batch.id")
    assert attributes == {
        "batch.size": 3,
        "batch.reason": "size",
        "batch.name": "audit",
        "batch.attempt": 1,
        "batch.links.total": 2,
        "batch.links.omitted": 0,
    }


async def test_traced_items_keep_their_keys_and_sizes(fake_clock: FakeClock) -> None:
    """Sinks make keys of records of them, and keep the order of each key by them."""
    seen: list[Any] = []

    async def sink(batch: Any) -> None:
        seen.append((batch.keys, batch.sizes, [*batch]))

    async with Batcher(
        stack(sink, Tracing(tracer_provider=PROVIDER)),
        limits=Limits(max_items=2, max_bytes=10),
        size_of=lambda _: 3,
        key=lambda carried: carried.item,
    ) as batcher:
        await batcher.add_many([link("a"), link("b")])
    ((keys, sizes, items),) = seen
    assert (list(keys), list(sizes), items) == (["a", "b"], [3, 3], ["a", "b"])


@pytest.mark.parametrize(
    ("count", "most", "children", "omitted"),
    [(128, 1024, 0, 0), (500, 1024, 3, 0), (500, 300, 2, 200)],
)
async def test_no_link_is_forgotten_in_silence(
    fake_clock: FakeClock, count: int, most: int, children: int, omitted: int
) -> None:
    """batcher/4b.8: links beyond the SDK's limit are moved to child spans; omitted ones are
    counted.
    """
    tracing = Tracing(tracer_provider=PROVIDER, max_links=most)
    await write(stack(FakeSink(), tracing), [link(number) for number in range(count)])
    (flush,) = spans("batcher.flush")
    more = spans("batcher.flush.links")
    assert len(more) == children
    assert all(span.parent == flush.get_span_context() for span in more)
    found = {each.context.span_id for span in [flush, *more] for each in span.links}
    assert len(found) == count - omitted
    assert all(span.dropped_links == 0 for span in [flush, *more])
    assert (flush.attributes or {})["batch.links.total"] == count
    assert (flush.attributes or {})["batch.links.omitted"] == omitted


async def test_a_trace_is_linked_once(fake_clock: FakeClock) -> None:
    """batcher/4b.8: ten items of one request."""
    with PROVIDER.get_tracer("t").start_as_current_span("request"):
        items = [link(number) for number in range(10)]
    await write(stack(FakeSink(), Tracing(tracer_provider=PROVIDER)), items)
    assert len(spans("batcher.flush")[0].links) == 1


async def test_a_sampled_parent(fake_clock: FakeClock) -> None:
    """batcher/B36: the second method in the founding document."""
    await write(
        stack(FakeSink(), Tracing(tracer_provider=PROVIDER, sampled_parent=True)),
        [link("a"), link("b")],
    )
    assert spans("batcher.flush")[0].parent == contexts("batcher.add")[0]


async def test_what_is_not_sampled_is_not_carried(fake_clock: FakeClock) -> None:
    """Without a span there is no wrapper: an untraced item costs nothing further on."""
    off = TracerProvider(sampler=ALWAYS_OFF)
    assert traced("a", tracer_provider=off) == "a"
    assert traced("a", span=None) == "a"
    with PROVIDER.get_tracer("t").start_as_current_span("request") as request:
        assert traced("a", span=None).context == request.get_span_context()


async def test_items_that_carry_a_context_of_their_own(fake_clock: FakeClock) -> None:
    """`context_of`; the items stay as they are."""
    sink: FakeSink[Any] = FakeSink()
    with PROVIDER.get_tracer("t").start_as_current_span("request") as request:
        items = [("a", request.get_span_context()), ("b", None)]
    await write(
        stack(sink, Tracing(tracer_provider=PROVIDER, context_of=lambda item: item[1])), items
    )
    assert [each.context for each in spans("batcher.flush")[0].links] == contexts("request")
    assert sink.applied == items


async def test_failures_and_what_hangs_below(fake_clock: FakeClock) -> None:
    """The span is current inside the write, including the branches of a fan-out; a failed item
    gives it the status error.
    """

    async def client(batch: Any) -> None:
        with PROVIDER.get_tracer("client").start_as_current_span("INSERT"):
            pass

    sink: ScriptedSink[Any] = ScriptedSink([partial({1: PermanentError("no")})])
    report = await write(
        stack(FanOut(client, sink), Tracing(tracer_provider=PROVIDER)), [link("a"), link("b")]
    )
    (flush,), (insert,) = spans("batcher.flush"), spans("INSERT")
    assert insert.parent == flush.get_span_context()
    assert flush.status.status_code is trace.StatusCode.ERROR
    assert flush.status.description == "1 of 2 items failed"
    assert (report.tally.delivered, report.tally.rejected) == (1, 1)


async def test_dead_letters_name_the_trace(fake_clock: FakeClock) -> None:
    """batcher/4a.7: the record contains the plain item."""
    letters: MemorySink[Any] = MemorySink()
    sink: Any = stack(
        ScriptedSink([fail(PermanentError("no"))]),
        Retry(),
        DeadLetter(letters),
        Tracing(tracer_provider=PROVIDER),
    )
    await write(sink, [link("a"), "b"])
    first, second = letters.items
    assert first.item == "a"
    assert first.trace_id == trace.format_trace_id(contexts("batcher.add")[0].trace_id)
    assert (second.item, second.trace_id) == ("b", None)


def test_mistakes() -> None:
    """Each error says what to change."""
    with pytest.raises(ConfigError, match="max_links=0"):
        Tracing(max_links=0)
    with pytest.raises(ConfigError, match="context_of=5: must be a function"):
        Tracing(context_of=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_an_error_that_cannot_be_shown_is_recorded_all_the_same(
    fake_clock: FakeClock,
) -> None:
    """The SDK calls `str` on it; the write ended long before."""

    class Unspeakable(PermanentError):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    sink: ScriptedSink[str] = ScriptedSink([partial({0: Unspeakable()})])
    report = await write(stack(sink, Tracing(tracer_provider=PROVIDER)), ["a", "b"])
    assert (report.tally.rejected, report.tally.delivered) == (1, 1)
    (flush,) = spans("batcher.flush")
    assert "Unspeakable" in str(dict(flush.events[0].attributes or {}))


async def test_an_item_whose_context_cannot_be_had_is_written_without_a_link(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A trace is no reason to lose a write; the first error is logged."""

    def context_of(item: str) -> Any:
        raise KeyError(item)

    sink: FakeSink[str] = FakeSink()
    await write(stack(sink, Tracing(tracer_provider=PROVIDER, context_of=context_of)), ["a", "b"])
    assert sink.applied == ["a", "b"]
    assert caplog.text.count("context_of=...) raised KeyError") == 1


async def test_an_item_with_a_context_is_found_behind_a_thousand_without(
    fake_clock: FakeClock,
) -> None:
    """In its batch, and in a later batch of the same sink; of a type first seen without a
    context.
    """
    sink: FakeSink[Any] = FakeSink()
    stacked = stack(sink, Tracing(tracer_provider=PROVIDER))
    plain = list(range(1_000))
    await write(stacked, plain)
    await write(stacked, [*plain, link(1_000)])
    await write(stacked, [link(7)])
    first, second, third = spans("batcher.flush")
    assert not first.links
    assert [each.context for each in (*second.links, *third.links)] == contexts("batcher.add")
    assert sink.applied == [*plain, *plain, 1_000, 7]


async def test_a_sink_that_is_opened_again_uses_the_tracer_of_that_time(
    fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The global provider may be set between two openings."""
    stacked = stack(FakeSink[Any](), Tracing())
    await write(stacked, ["before"])
    assert not spans("batcher.flush")
    monkeypatch.setattr(trace, "get_tracer", lambda *_, **__: PROVIDER.get_tracer("other"))
    await write(stacked, ["after"])
    assert len(spans("batcher.flush")) == 1
