"""Runs of events: threads, timeouts, cancellations, budgets, ends of sources, and other ordering
modes.

White box: the class of a timeout, which no package exports.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, log_of
from jobs.jobs_help import pass_on, running

from sluicegate import ConfigError, Consumer
from sluicegate.consumer import ConsumerObserver, MemorySource, Position
from sluicegate.consumer.handling.results import HandlerTimeout
from sluicegate.consumer.jobs import (
    BatchItem,
    BatchItems,
    EventContext,
    Incomplete,
    ItemBatcher,
    JobScheduler,
)

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


async def test_plain_functions_run_in_threads(fake_clock: FakeClock) -> None:
    """consumer/G21: a processor, a finaliser, an executor and a callback."""
    main, threads = threading.get_ident(), set[str]()

    def process(key: str, value: object) -> None:
        if threading.get_ident() != main:
            threads.add("processor")
        raise ValueError("a bad job")

    def finalise(context: EventContext, key: str, value: object, error: object) -> Incomplete:
        assert isinstance(error, ValueError)
        if threading.get_ident() != main:
            threads.add("finaliser")
        return batcher.add(BatchItems(context, key, written).add(1))

    def execute(items: list[BatchItem]) -> None:
        if threading.get_ident() != main:
            threads.add("executor")

    def written(context: EventContext, group: BatchItems) -> None:
        if threading.get_ident() != main:
            threads.add("callback")

    jobs, batcher = JobScheduler(process, finalise), ItemBatcher(execute, max_batch_size=2)

    def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a", "b")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs, batcher):
        await fake_clock.advance(1.0)
    assert threads == {"processor", "finaliser", "executor", "callback"}
    assert log.positions[P0] == Position(2)


async def test_a_timeout_cuts_a_finaliser_and_leaves_its_job(fake_clock: FakeClock) -> None:
    """O-T16: only the finaliser is retried; a processor has no time limit."""
    seen: list[str] = []

    async def process(key: str, value: object) -> None:
        seen.append("process")
        await fake_clock.sleep(5.0)

    async def finalise(context: EventContext, *_: object) -> None:
        seen.append("finalise")
        if context.message.attempt == 1:
            await fake_clock.sleep(9.0)
        else:
            assert isinstance(context.message.attempts.error, HandlerTimeout)

    jobs = JobScheduler(process, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a")
    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle, jobs, timeout=1.0):
        await fake_clock.advance(20.0)
    assert seen == ["process", "finalise", "finalise"]
    assert log.positions[P0] == Position(1)


async def test_a_cancelled_run_drains_and_a_second_cancellation_ends_it(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:B3: the jobs are cancelled, and the consumer is empty."""
    cancelled = 0

    async def process(key: str, value: object) -> None:
        nonlocal cancelled
        try:
            await fake_clock.sleep(2.0 if key == "a" else 1000.0)
        except asyncio.CancelledError:
            cancelled += 1
            raise

    jobs = JobScheduler(process)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a", "b", "c")
    source = MemorySource(log, clock=fake_clock)
    async with Consumer(source, ordering="partition", clock=fake_clock, drain=60.0) as consumer:
        run = asyncio.ensure_future(consumer.run_events(handle, jobs=[jobs]))
        await fake_clock.advance(1.0)
        run.cancel()
        await fake_clock.advance(2.0)
        assert not run.done()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert cancelled == 2
        assert consumer.stats().in_flight.messages == 0
    assert log.positions[P0].offset == 1


@pytest.mark.parametrize("ordering", ["partition", "key", "unordered"])
async def test_a_source_that_ends_waits_for_jobs(fake_clock: FakeClock, ordering: Any) -> None:
    """consumer/G2: also for items that wait for others, in any order."""
    written_keys: list[str] = []

    async def process(key: str, value: object) -> None:
        await fake_clock.sleep(30.0)

    async def finalise(context: EventContext, key: str, *_: object) -> Incomplete:
        return batcher.add(BatchItems(context, key, written).add(1))

    async def execute(items: list[BatchItem]) -> None:
        written_keys.extend(item.key for item in items)

    async def written(context: EventContext, group: BatchItems) -> None:
        pass

    jobs = JobScheduler(process, finalise)
    batcher = ItemBatcher(execute, max_batch_size=100, delay=60.0)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a", "b", "a")
    source = MemorySource(log, ends=True, clock=fake_clock)
    async with Consumer(source, ordering=ordering, clock=fake_clock) as consumer:
        report = await consumer.run_events(handle, jobs=[jobs, batcher])
    assert report.complete
    assert report.at_end
    assert sorted(written_keys) == ["a", "a", "b"]
    assert log.positions[P0] == Position(3)


async def test_a_budget_ends_a_run_and_items_do_not_wait_then(fake_clock: FakeClock) -> None:
    """O-T9: the drain does not wait for batches to fill."""

    async def execute(items: list[BatchItem]) -> None:
        await fake_clock.sleep(0.5)

    async def written(context: EventContext, group: BatchItems) -> None:
        pass

    batcher = ItemBatcher(execute, max_batch_size=100, delay=60.0)

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, "k", written).add(1))

    log = log_of("a", "b")
    source = MemorySource(log, clock=fake_clock)
    began = fake_clock.now()
    async with Consumer(source, ordering="partition", clock=fake_clock, budget=5.0) as consumer:
        report = await consumer.run_events(handle, jobs=[batcher])
    assert fake_clock.now() - began == pytest.approx(5.5)
    assert report.counts.acked == 2
    assert log.positions[P0] == Position(2)


async def test_fewer_jobs_run_once_their_bound_is_lower(fake_clock: FakeClock) -> None:
    """consumer/G20: running jobs end; an invalid limit changes nothing."""
    running_jobs, most = 0, list[int]()

    async def process(key: int, value: object) -> None:
        nonlocal running_jobs
        running_jobs += 1
        most.append(running_jobs)
        await fake_clock.sleep(1.0)
        running_jobs -= 1

    jobs = JobScheduler(process, concurrency=4)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.message.offset, None)

    log = log_of(*range(12))
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs):
        await fake_clock.advance(0.5)
        jobs.set_bounds(concurrency=1)
        with pytest.raises(ConfigError, match="max_per_key=0"):
            jobs.set_bounds(concurrency=9, max_per_key=0)
        jobs.set_bounds(max_keys=20)
        await fake_clock.advance(20.0)
    assert max(most) == 4
    assert most[4:] == [1] * 8
    assert log.positions[P0] == Position(12)


async def test_the_key_of_a_job_is_not_the_key_of_its_record(fake_clock: FakeClock) -> None:
    """consumer/G7: jobs of one key do not overlap, whatever their records' keys are."""
    running_jobs, at_once = set[object](), set[frozenset[object]]()

    async def process(key: str, value: object) -> None:
        running_jobs.add((key, value))
        at_once.add(frozenset(running_jobs))
        await fake_clock.sleep(1.0)
        running_jobs.remove((key, value))

    jobs = JobScheduler(process)
    job_keys = ["account 1", "account 1", "account 2"]

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, job_keys[context.message.offset], context.message.offset)

    log = log_of("a", "b", "a")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs):
        await fake_clock.advance(5.0)
    assert frozenset({("account 1", 0), ("account 2", 2)}) in at_once
    assert not any({("account 1", 0), ("account 1", 1)} <= each for each in at_once)
    assert log.positions[P0] == Position(3)


async def test_observers_are_told_of_each_turn(fake_clock: FakeClock) -> None:
    """consumer/G2: a handler that releases its turn, and the results of its finalisers."""
    ends: list[str] = []

    class Ends(ConsumerObserver):
        def handling(self, name: str, *, is_batch: bool) -> Any:
            return lambda messages: lambda end: ends.append(end.outcome)

    async def finalise(context: EventContext, *_: object) -> None:
        if context.message.attempt == 1:
            raise ConnectionError("busy")

    jobs = JobScheduler(pass_on, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, handle, jobs, observers=[Ends()]):
        await fake_clock.advance(5.0)
    assert ends == ["manual", "error", "ack"]
