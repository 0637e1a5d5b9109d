"""Jobs that are cut, cancelled or lost, program exits, and schedulers without a run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, log_of, records
from jobs.jobs_help import pass_on, running

from sluicegate import Backoff, ClosedError, ConfigError, Consumer, Nak, RetryPolicy, ThrottledError
from sluicegate.consumer import MemoryLog, MemorySource, Position
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


async def test_items_of_a_lost_claim_are_not_executed(fake_clock: FakeClock) -> None:
    """G-T16: those that are not yet in a batch."""
    executed: list[object] = []

    async def execute(items: list[BatchItem]) -> None:
        executed.extend(item.value for item in items)

    async def written(context: EventContext, group: BatchItems) -> None:
        pass

    batcher, tries = ItemBatcher(execute, max_batch_size=10, delay=5.0), 0

    async def handle(context: EventContext) -> Incomplete:
        nonlocal tries
        tries += 1
        return batcher.add(BatchItems(context, "k", written).add(tries))

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, handle, batcher):
        await fake_clock.advance(1.0)
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(10.0)
        assert executed == [2]
    assert batcher.inside == 0


# -- cancellations and exits ----------------------------------------------------------------------


async def test_an_executor_that_raises_a_cancellation_fails_its_items(
    fake_clock: FakeClock,
) -> None:
    """G-T10: nothing hangs."""
    errors: list[BaseException | None] = []

    async def execute(items: list[BatchItem]) -> None:
        raise asyncio.CancelledError

    async def written(context: EventContext, group: BatchItems) -> None:
        errors.extend(item.error for item in group.items)

    batcher = ItemBatcher(execute, max_batch_size=2)

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, context.key, written).add(1))

    log = log_of("a", "b")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, batcher):
        await fake_clock.advance(1.0)
    assert [type(error) for error in errors] == [asyncio.CancelledError] * 2
    assert log.positions[P0] == Position(2)


async def test_a_cancellation_of_a_job_is_its_own(fake_clock: FakeClock) -> None:
    """consumer/C:F4: neither a swallowed nor a leftover cancellation reaches the next job."""
    ended: list[object] = []

    async def process(key: str, value: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        if key == "swallows":
            task.cancel()
            try:
                await fake_clock.sleep(1.0)
            except asyncio.CancelledError:
                return
        if key == "leaves":
            task.cancel()
            return
        assert task.cancelling() == 0
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_failing())
        ended.append(key)

    async def finalise(context: EventContext, key: str, value: object, error: object) -> None:
        assert error is None

    jobs = JobScheduler(process, finalise, concurrency=1)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("swallows", "a", "leaves", "b")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs):
        await fake_clock.advance(1.0)
    assert ended == ["a", "b"]
    assert log.positions[P0] == Position(4)


async def _failing() -> None:
    raise ValueError("a part fails")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["processor", "executor", "finaliser"])
async def test_an_exit_ends_the_consumer_after_its_drain(
    fake_clock: FakeClock, kind: type[BaseException], where: str
) -> None:
    """consumer/C:B3: its event stays unsettled; all others inside are finished."""

    async def process(key: str, value: object) -> None:
        if key == "exit" and where == "processor":
            raise kind
        await fake_clock.sleep(0.5)

    async def finalise(context: EventContext, key: str, value: object, error: Any) -> None:
        if key == "exit" and where == "finaliser":
            raise kind

    async def execute(items: list[BatchItem]) -> None:
        if items[0].key == "exit":
            raise kind

    async def written(context: EventContext, group: BatchItems) -> object:
        return Nak(error=group.items[0].error) if group.items[0].error else None

    jobs, batcher = JobScheduler(process, finalise), ItemBatcher(execute, max_batch_size=1)

    async def handle(context: EventContext) -> Incomplete:
        if where == "executor":
            return batcher.add(BatchItems(context, context.key, written).add(1))
        return jobs.schedule(context, context.key, None)

    log = log_of("a", "exit")
    source = MemorySource(log, clock=fake_clock)
    began = fake_clock.now()
    with pytest.raises(kind):
        async with Consumer(source, ordering="partition", clock=fake_clock, drain=9.0) as consumer:
            await consumer.run_events(handle, jobs=[jobs, batcher])
    assert fake_clock.now() - began < 2.0
    assert log.positions[P0].offset == 1


# -- schedulers and their runs --------------------------------------------------------------------


async def test_a_scheduler_serves_one_consumer_after_another(fake_clock: FakeClock) -> None:
    """G-T17: one consumer at a time; a refused run leaves its other schedulers free."""
    jobs, other = JobScheduler(pass_on, name="shared"), JobScheduler(pass_on)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs):
        source = MemorySource(MemoryLog(), clock=fake_clock)
        async with Consumer(source, clock=fake_clock, ordering="partition") as consumer:
            with pytest.raises(
                ConfigError, match=r"'shared'.* is already used by another consumer"
            ):
                await consumer.run_events(handle, jobs=[other, jobs])
    log.append(records("b", first=1)[0])
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, other, jobs):
        await fake_clock.advance(1.0)
    assert log.positions[P0] == Position(2)
    with pytest.raises(ClosedError):
        other.schedule(EventContext(None, None), "a", None)  # type: ignore[arg-type]


async def test_keys_without_a_hash_and_odd_ones(fake_clock: FakeClock) -> None:
    """G-T17, G-T21: an unhashable key fails its own event only."""
    keys: list[object] = [("a", 1), ["no", "hash"], 1.0, 1, True, float("nan")]

    async def process(key: object, value: object) -> None:
        await fake_clock.sleep(0.1)

    jobs = JobScheduler(process, debug=True)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, keys[context.message.offset], None)

    log = log_of(*range(6))
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs) as consumer:
        await fake_clock.advance(0.05)
        assert jobs.has_key(("a", 1))
        assert not jobs.has_key(("a", 2))
        await fake_clock.advance(3.0)
        counts = consumer.stats().counts
    assert (counts.acked, counts.terminated) == (4, 2)
    assert log.positions[P0] == Position(6)


async def test_a_job_is_tried_again_in_the_order_of_its_key(fake_clock: FakeClock) -> None:
    """Later jobs of its key wait, jobs of other keys do not; the finaliser receives the last
    error.
    """
    tries, done = list[tuple[object, object]](), list[tuple[object, str]]()

    async def process(key: object, value: object) -> None:
        tries.append((key, value))
        if key == "a":
            raise ConnectionError(f"try {len([each for each in tries if each == (key, value)])}")

    async def finalise(
        context: EventContext, key: object, value: object, error: BaseException | None
    ) -> None:
        done.append((value, str(error)))

    policy = RetryPolicy(attempts=3, backoff=Backoff(base=1.0, longest=1.0, jitter="none"))
    jobs = JobScheduler(process, finalise, retry=policy)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, context.message.offset)

    log = log_of("a", "a", "b")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, jobs):
        await fake_clock.advance(1.5)
        assert tries == [("a", 0), ("b", 2), ("a", 0)]
        assert done == [(2, "None")]
        await fake_clock.advance(10.0)
    assert tries[3:] == [("a", 0), ("a", 1), ("a", 1), ("a", 1)]
    assert done[1:] == [(0, "try 3"), (1, "try 3")]
    assert log.positions[P0] == Position(3)


async def test_a_job_that_waits_for_its_next_try_is_left_with_its_claim(
    fake_clock: FakeClock,
) -> None:
    """G-T16: it is not retried here."""
    tries = 0

    async def process(key: object, value: object) -> None:
        nonlocal tries
        tries += 1
        raise ConnectionRefusedError

    jobs = JobScheduler(
        process, retry=RetryPolicy(backoff=Backoff(base=1.0, longest=1.0, jitter="none"))
    )

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, handle, jobs):
        await fake_clock.advance(100.5)
        assert tries == 101, "an outage uses up no attempt"
        source.lose([P0])
        await fake_clock.advance(100.0)
        assert tries == 101
        assert jobs.stats().running == 0


async def test_a_job_is_not_repeated_before_the_destination_allows_it(
    fake_clock: FakeClock,
) -> None:
    """consumer/G6: the `Retry-After` of a throttled destination applies, up to the policy's
    maximum.
    """
    began: list[float] = []

    async def process(key: object, value: object) -> None:
        began.append(fake_clock.now())
        if len(began) < 3:
            raise ThrottledError("busy", retry_after=20.0 if len(began) == 1 else 1000.0)

    policy = RetryPolicy(
        max_retry_after=60.0, backoff=Backoff(base=1.0, longest=1.0, jitter="none")
    )
    jobs = JobScheduler(process, retry=policy)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    async with running(MemorySource(log_of("a"), clock=fake_clock), fake_clock, handle, jobs):
        await fake_clock.advance(200.0)
    assert [now - began[0] for now in began] == [0.0, 20.0, 80.0]


def test_a_bad_retry() -> None:
    with pytest.raises(ConfigError, match="must be a RetryPolicy"):
        JobScheduler(pass_on, retry=3)  # type: ignore[arg-type]
