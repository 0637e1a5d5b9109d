"""Items that events forward through a batcher: an event is complete once they are delivered."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, log_of
from jobs.jobs_help import PROMPT, pass_on

from sluicegate import (
    Batcher,
    ClosedError,
    ConfigError,
    Consumer,
    Limits,
    Nak,
    PermanentError,
    TransientError,
)
from sluicegate.consumer import Commits, MemorySource, Poison, Position
from sluicegate.consumer.jobs import EventContext, Incomplete, JobScheduler
from sluicegate.testing import BlockingSink, MockContext, ScriptedSink, ok, partial

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sluicegate.consumer import MemoryLog
    from sluicegate.testing import FakeClock


@asynccontextmanager
async def forwarding(
    log: MemoryLog,
    clock: FakeClock,
    sink: ScriptedSink[Any],
    handler: Callable[[EventContext], Any],
    *jobs: Any,
    **options: Any,
) -> AsyncGenerator[Consumer]:
    """A consumer whose events forward items into a sink."""
    options = {"retry": PROMPT, "poison": "skip", "commits": Commits(every=0.01), **options}
    async with (
        Batcher(sink, limits=Limits(max_items=10, max_delay=0.1), clock=clock) as batcher,
        Consumer(
            MemorySource(log, clock=clock), clock=clock, ordering="partition", **options
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(consumer.run_events(handler, jobs=jobs, forward_to=batcher))
        await clock.advance(0.0)
        try:
            yield consumer
        finally:
            consumer.stop()
            await run


async def forward_key(context: EventContext) -> None:
    context.forward(context.key)


async def test_an_event_is_complete_once_its_items_have_arrived(fake_clock: FakeClock) -> None:
    """consumer/G27, consumer/G-T20: its position is not passed earlier; events behind it are
    handled meanwhile.
    """
    log, sink = log_of(*"abc"), ScriptedSink[Any]()
    async with forwarding(log, fake_clock, sink, forward_key) as consumer:
        assert consumer.stats().counts.acked == 0
        assert "forwarded items in flight" in str(consumer.explain())
        await fake_clock.advance(0.05)
        assert log.positions.get(P0, Position(0)) == Position(0)
        await fake_clock.advance(0.1)
        assert sink.applied == ["a", "b", "c"]
        await fake_clock.advance(0.1)
        assert log.positions[P0] == Position(3)


async def test_a_turn_that_fails_forwards_nothing(fake_clock: FakeClock) -> None:
    """Whether it fails by an exception or by its result; the next attempt forwards."""
    log, sink, tries = log_of(*"abc"), ScriptedSink[Any](), list[object]()

    async def handle(context: EventContext) -> object:
        tries.append(context.key)
        context.forward((context.key, tries.count(context.key)))
        if context.key == "a" and tries.count("a") == 1:
            raise ConnectionError("not yet")
        if context.key == "b" and tries.count("b") == 1:
            return Nak(0.0)
        return None

    async with forwarding(log, fake_clock, sink, handle):
        await fake_clock.advance(5.0)
    assert sink.applied == [("a", 2), ("b", 2), ("c", 1)]
    assert log.positions[P0] == Position(3)


async def test_all_stages_of_an_event_may_forward(fake_clock: FakeClock) -> None:
    """A handler that begins a job, and its finaliser: the event waits for the items of both."""
    log, sink = log_of(*"ab"), ScriptedSink[Any]()

    async def finalise(context: EventContext, key: object, *_: object) -> None:
        context.forward(f"{key} finalised")

    jobs = JobScheduler(pass_on, finalise)

    async def handle(context: EventContext) -> Incomplete:
        context.forward(f"{context.key} begun")
        return jobs.schedule(context, context.key, None)

    async with forwarding(log, fake_clock, sink, handle, jobs):
        await fake_clock.advance(1.0)
    assert sorted(sink.applied) == ["a begun", "a finalised", "b begun", "b finalised"]
    assert log.positions[P0] == Position(2)


async def test_refused_items_are_submitted_again_and_no_handler_is_repeated(
    fake_clock: FakeClock,
) -> None:
    """After a transient refusal the event is retried, with the refused items only."""
    log, handled = log_of(*"ab"), list[object]()
    sink = ScriptedSink[Any]([partial({1: TransientError("busy")})])

    async def handle(context: EventContext) -> None:
        handled.append(context.key)
        context.forward(context.key)

    async with forwarding(log, fake_clock, sink, handle):
        await fake_clock.advance(5.0)
    assert handled == ["a", "b"]
    assert sink.applied == ["a", "b"]
    assert log.positions[P0] == Position(2)


async def test_an_item_that_is_refused_for_good_is_poison(fake_clock: FakeClock) -> None:
    """Its event becomes a dead letter with the destination's error; its neighbours are
    delivered.
    """
    log, letters = log_of(*"abc"), ScriptedSink[Any]()
    sink = ScriptedSink[Any]([partial({1: PermanentError("no such column")})])
    async with forwarding(
        log, fake_clock, sink, forward_key, poison=Poison("skip", dead_letters=letters)
    ):
        await fake_clock.advance(5.0)
    assert sink.applied == ["a", "c"]
    assert [(each.item["offset"], each.message) for each in letters.applied] == [
        (1, "no such column")
    ]
    assert log.positions[P0] == Position(3)


async def test_a_drain_leaves_events_whose_items_are_on_their_way(fake_clock: FakeClock) -> None:
    """The next owner handles them again: no event is complete before its items are delivered."""
    log, sink = log_of(*"ab"), BlockingSink[Any]()
    async with forwarding(log, fake_clock, sink, forward_key, drain=1.0) as consumer:
        await fake_clock.advance(0.5)
        assert len(sink.calls) == 1
        consumer.stop()
        await fake_clock.advance(2.0)
        assert consumer.stats().counts.acked == 0
        sink.release()
    assert log.positions.get(P0, Position(0)) == Position(0)


async def test_an_interjection_is_complete_once_its_items_have_arrived(
    fake_clock: FakeClock,
) -> None:
    """Its caller receives the result, or the error of refused items."""
    sink = ScriptedSink[Any]([ok(), partial({0: PermanentError("no")})])

    async def tick(context: EventContext) -> None:
        context.forward("tick")

    async def nothing(_: EventContext) -> None:
        """Handle an event."""

    async with forwarding(log_of("a"), fake_clock, sink, nothing) as consumer:
        asking = asyncio.create_task(consumer.interject(tick))
        await fake_clock.advance(0.05)
        assert not asking.done()
        await fake_clock.advance(0.1)
        await asking
        assert sink.applied == ["tick"]
        asking = asyncio.create_task(consumer.interject(tick))
        await fake_clock.advance(0.2)
        with pytest.raises(PermanentError, match="no"):
            await asking


async def test_a_batcher_that_is_closed_ends_the_run(fake_clock: FakeClock) -> None:
    """No event is given up because of it."""
    log, letters = log_of(*"ab"), ScriptedSink[Any]()
    batcher = Batcher(ScriptedSink[Any](), clock=fake_clock)
    async with batcher:
        pass
    async with Consumer(
        MemorySource(log, clock=fake_clock),
        clock=fake_clock,
        ordering="partition",
        poison=Poison(dead_letters=letters),
    ) as consumer:
        task = asyncio.create_task(consumer.run_events(forward_key, forward_to=batcher))
        await fake_clock.advance(60.0)
        with pytest.raises(ClosedError):
            await task
    assert letters.applied == []
    assert log.positions.get(P0, Position(0)) == Position(0)


async def test_bad_arguments(fake_clock: FakeClock) -> None:
    async with Consumer(MemorySource(log_of(*"a"), ends=True), ordering="partition") as consumer:
        with pytest.raises(ConfigError, match="must be an open Batcher"):
            await consumer.run_events(forward_key, forward_to=ScriptedSink())  # type: ignore[arg-type]


async def test_nowhere_to_forward_to(fake_clock: FakeClock) -> None:
    """The handler fails with an error that says what to pass."""
    log, letters = log_of(*"a"), ScriptedSink[Any]()
    async with Consumer(
        MemorySource(log, ends=True),
        ordering="partition",
        poison=Poison("skip", dead_letters=letters),
        retry=PROMPT,
    ) as consumer:
        await consumer.run_events(forward_key)
    assert "run_events(forward_to=batcher)" in letters.applied[0].message


async def test_a_mock_context_notes_what_is_forwarded(fake_clock: FakeClock) -> None:
    context = MockContext("v", key="k")
    await forward_key(context)
    assert context.sent_on == ["k"]
