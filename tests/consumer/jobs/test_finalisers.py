"""Edge cases of events that are completed later: results of finalisers, early and late completions,
ended claims.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, log_of
from jobs.jobs_help import pass_on, running

from sluicegate import Ack, Nak, Terminate, ToDeadLetter
from sluicegate.consumer import Manual, MemorySource, Position, decode
from sluicegate.consumer.jobs import (
    EventContext,
    Incomplete,
    JobScheduler,
)

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

# -- results of finalisers -----------------------------------------------------------------------


@pytest.mark.parametrize("first", [Nak(), Nak(0.5)])
async def test_a_finaliser_that_fails_may_begin_another_stage_then(
    fake_clock: FakeClock, first: Nak
) -> None:
    """consumer/G2, G-T5."""
    tries, done = 0, list[object]()

    async def finalise(context: EventContext, key: object, *_: object) -> object:
        nonlocal tries
        tries += 1
        return first if tries == 1 else second.schedule(context, key, None)

    async def last(context: EventContext, key: object, *_: object) -> None:
        done.append(key)

    jobs, second = JobScheduler(pass_on, finalise), JobScheduler(pass_on, last)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs, second):
        await fake_clock.advance(5.0)
    assert done == ["a"]
    assert log.positions[P0] == Position(1)


async def test_a_job_without_a_finaliser_waits_for_no_turn(fake_clock: FakeClock) -> None:
    """consumer/G6: its event is complete while the next handler of the partition still runs."""
    jobs, ended = JobScheduler(pass_on), asyncio.Event()

    async def handle(context: EventContext) -> Incomplete | None:
        if context.key == "a":
            return jobs.schedule(context, context.key, None)
        await ended.wait()
        return None

    log = log_of("a", "b")
    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle, jobs) as consumer:
        await fake_clock.advance(5.0)
        assert log.positions[P0] == Position(1)
        stats = consumer.stats()
        assert (stats.in_flight.messages, stats.in_flight.manual) == (1, 0)
        assert stats.counts.acked == 1
        ended.set()
    assert log.positions[P0] == Position(2)


async def test_a_failed_finaliser_sees_the_decoded_value_again(fake_clock: FakeClock) -> None:
    """consumer/G2: the steps are not repeated."""
    seen: list[object] = []

    async def finalise(context: EventContext, *_: object) -> None:
        seen.append(context.value)
        if len(seen) == 1:
            raise ConnectionError("busy")

    jobs = JobScheduler(pass_on, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, context.value)

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, handle, jobs, steps=[decode(int)]):
        await fake_clock.advance(5.0)
    assert seen == [0, 0]


@pytest.mark.parametrize("answer", [ToDeadLetter("no"), Terminate("no")])
async def test_a_finaliser_may_give_its_event_up(fake_clock: FakeClock, answer: object) -> None:
    """consumer/C:F2: it may return the same results as a handler."""

    async def finalise(context: EventContext, *_: object) -> object:
        return answer if context.key == "a" else None

    jobs = JobScheduler(pass_on, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a", "b")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs) as consumer:
        await fake_clock.advance(1.0)
        counts = consumer.stats().counts
    assert (counts.terminated, counts.acked) == (1, 1)
    assert log.positions[P0] == Position(2)


async def test_a_finaliser_may_answer_manual(fake_clock: FakeClock) -> None:
    """consumer/C:N5: its event waits for `settle` and is counted in one place."""
    contexts: list[EventContext] = []

    async def finalise(context: EventContext, *_: object) -> Manual:
        contexts.append(context)
        return Manual()

    jobs = JobScheduler(pass_on, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a", "b")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs) as consumer:
        await fake_clock.advance(1.0)
        inside = consumer.stats().in_flight
        assert (inside.messages, inside.manual, inside.waiting) == (2, 1, 1)
        assert contexts[0].message.settle(Ack())
        await fake_clock.advance(0.0)
        assert contexts[1].message.settle(Ack())
    assert log.positions[P0] == Position(2)


async def test_settle_is_not_for_events_that_wait_for_jobs(fake_clock: FakeClock) -> None:
    """G-T18: only a finaliser completes them."""
    gate, contexts = asyncio.Event(), list[EventContext]()

    async def process(key: object, value: object) -> None:
        await gate.wait()

    jobs = JobScheduler(process)

    async def handle(context: EventContext) -> Incomplete:
        contexts.append(context)
        return jobs.schedule(context, context.key, None)

    log = log_of("a", "b")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs) as consumer:
        await fake_clock.advance(1.0)
        assert not contexts[0].message.settle(Ack())
        await consumer.commit()
        assert P0 not in log.positions
        gate.set()
    assert log.positions[P0] == Position(2)


# -- job_complete ---------------------------------------------------------------------------------


async def test_an_early_completion_of_a_failed_try_counts_for_nothing(
    fake_clock: FakeClock,
) -> None:
    """G-T18: later completions through its context are refused, too."""
    contexts, done = list[EventContext](), list[str]()

    def finish(name: str) -> Any:
        async def finish(context: EventContext) -> None:
            done.append(name)

        return finish

    async def handle(context: EventContext) -> Incomplete:
        contexts.append(context)
        if len(contexts) == 1:
            assert context.job_complete(finish("of the first try"))
            raise ConnectionError("busy")
        return Incomplete()

    log = log_of("a")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle):
        await fake_clock.advance(1.0)
        assert done == []
        assert not contexts[0].job_complete(finish("of the first try, late"))
        assert contexts[1].job_complete(finish("of the second try"))
        await fake_clock.advance(0.0)
    assert done == ["of the second try"]
    assert log.positions[P0] == Position(1)


async def test_a_running_handler_of_a_lost_claim_completes_nothing(fake_clock: FakeClock) -> None:
    """G-T16, G-T18: `job_complete` returns false."""
    answers: list[bool] = []

    async def finish(context: EventContext) -> None:
        pass

    async def handle(context: EventContext) -> Incomplete:
        await fake_clock.sleep(1.0)
        answers.append(context.job_complete(finish))
        return Incomplete()

    log = log_of("a")
    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle):
        await fake_clock.advance(0.5)
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(5.0)
    assert answers == [False, True]
    assert log.positions[P0] == Position(1)


async def test_completions_while_the_claim_closes_count(fake_clock: FakeClock) -> None:
    """consumer/G23, O-T7: once the claim has ended they have no effect."""
    contexts, done = list[EventContext](), list[int]()

    async def finish(context: EventContext) -> None:
        done.append(context.message.offset)

    async def handle(context: EventContext) -> Incomplete:
        contexts.append(context)
        return Incomplete()

    log = log_of("a", "b")
    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle, drain=5.0):
        revoke = asyncio.ensure_future(source.revoke([P0]))
        await fake_clock.advance(1.0)
        assert contexts[0].job_complete(finish)
        await fake_clock.advance(10.0)
        assert revoke.done()
        assert not contexts[1].job_complete(finish)
        assert log.positions[P0].offset == 1
        source.assign([P0])
        await fake_clock.advance(1.0)
        assert [context.message.offset for context in contexts] == [0, 1, 1]
        assert not contexts[1].job_complete(finish)
        assert contexts[2].job_complete(finish)
    assert done == [0, 1]


# -- the end of a claim ---------------------------------------------------------------------------


async def test_finalisers_that_wait_leave_with_their_claim(fake_clock: FakeClock) -> None:
    """O-T8, consumer/C:B1: all of them, and they release their capacity."""
    gate = asyncio.Event()

    async def finalise(context: EventContext, *_: object) -> None:
        await gate.wait()

    jobs = JobScheduler(pass_on, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of(*"abcdef")
    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle, jobs, in_flight=6) as consumer:
        await fake_clock.advance(1.0)
        inside = consumer.stats().in_flight
        assert (inside.messages, inside.running, inside.waiting) == (6, 1, 5)
        source.lose([P0])
        await fake_clock.advance(0.0)
        assert consumer.stats().in_flight.messages == 1
        source.assign([P0])
        gate.set()
        await fake_clock.advance(1.0)
        assert consumer.stats().counts.acked == 6
    assert log.positions[P0] == Position(6)


async def test_a_finaliser_that_fails_in_a_closing_claim_is_not_overtaken(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:O1: the events behind it also leave with the claim, in order."""
    seen: list[tuple[int, bool]] = []
    gate = asyncio.Event()

    async def finalise(context: EventContext, key: object, value: object, _: object) -> None:
        offset = context.message.offset
        fails = context.message.claim.is_closing and offset == 0
        if offset == 0 and not fails and not gate.is_set():
            await gate.wait()
            fails = True
        seen.append((offset, fails))
        if fails:
            raise ConnectionError("busy")

    async def process(key: object, value: int) -> None:
        if value == 2:
            await fake_clock.sleep(2.5)

    jobs = JobScheduler(process, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, "one key", context.message.offset)

    log = log_of("a", "a", "a")
    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle, jobs, drain=5.0) as consumer:
        await fake_clock.advance(1.0)
        revoke = asyncio.ensure_future(source.revoke([P0]))
        await fake_clock.advance(0.1)
        gate.set()
        await fake_clock.advance(4.0)
        assert revoke.done()
        assert seen == [(0, True)]
        assert consumer.stats().in_flight.messages == 0
        source.assign([P0])
        await fake_clock.advance(5.0)
    assert seen == [(0, True), (0, False), (1, False), (2, False)]
    assert log.positions[P0] == Position(3)
