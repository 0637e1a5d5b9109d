"""Executions that fail as a whole and are repeated by the batcher's retry policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, log_of, records
from jobs.jobs_help import running

from sluicegate import Backoff, ConfigError, PermanentError, RetryPolicy
from sluicegate.consumer import MemoryLog, MemorySource, Position
from sluicegate.consumer.jobs import BatchItem, BatchItems, EventContext, Incomplete, ItemBatcher

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

EVERY_SECOND = RetryPolicy(attempts=3, backoff=Backoff(base=1.0, longest=1.0, jitter="none"))


class Executor:
    """An executor with errors for its first calls, and a callback that records each event."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = [*errors]
        self.calls: list[list[int]] = []
        self.told: list[tuple[int, str]] = []

    async def execute(self, items: list[BatchItem]) -> None:
        """Fail each item with a negative value, then raise the next error."""
        self.calls.append([item.value for item in items])
        for item in items:
            if item.value < 0:
                item.error = ValueError("negative")
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    async def written(self, context: EventContext, group: BatchItems) -> None:
        """Record the errors of an event."""
        self.told += [(item.value, str(item.error)) for item in group.items]

    def batcher(self, size: int = 2, **options: Any) -> ItemBatcher:
        """A batcher of this executor, with the policy."""
        options = {"retry": EVERY_SECOND, **options}
        return ItemBatcher(self.execute, max_batch_size=size, **options)


async def test_an_execution_that_raises_is_repeated_and_keeps_its_keys(
    fake_clock: FakeClock,
) -> None:
    """G-T25, G-T8: later items of its keys wait, others do not."""
    executor = Executor(ConnectionError(), None, ConnectionError())
    batcher = executor.batcher()

    async def handle(context: EventContext) -> Incomplete:
        offset = context.message.offset
        return batcher.add(BatchItems(context, context.key, executor.written).add(offset))

    log = log_of("a", "b", "a", "c", "d")
    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle, batcher):
        await fake_clock.advance(1.5)
        assert executor.calls == [[0, 1], [3, 4], [0, 1]]
        assert executor.told == [(3, "None"), (4, "None")]
        await fake_clock.advance(10.0)
    assert executor.calls == [[0, 1], [3, 4], [0, 1], [0, 1], [2]]
    assert sorted(executor.told) == [(n, "None") for n in range(5)]
    assert log.positions[P0] == Position(5)


async def test_the_callbacks_get_the_error_of_the_last_try(fake_clock: FakeClock) -> None:
    """G-T25, G-T10: an item with its own error keeps it and is not repeated."""
    executor = Executor(*[ConnectionError(f"try {n}") for n in (1, 2, 3)])
    batcher = executor.batcher()

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, context.key, executor.written).add(-1, 2))

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, handle, batcher):
        await fake_clock.advance(10.0)
    assert executor.calls == [[-1, 2], [2], [2]]
    assert executor.told == [(-1, "negative"), (2, "try 3")]


async def test_a_permanent_error_is_not_repeated(fake_clock: FakeClock) -> None:
    """G-T25: it would fail each time."""
    executor = Executor(PermanentError("no such table"))
    batcher = executor.batcher()

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, context.key, executor.written).add(1))

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, handle, batcher):
        await fake_clock.advance(10.0)
    assert executor.calls == [[1]]
    assert executor.told == [(1, "no such table")]


async def test_items_of_a_claim_that_ended_meanwhile_are_not_repeated(
    fake_clock: FakeClock,
) -> None:
    """G-T25, G-T16: items of other claims are; if there are none, the keys are free after the
    wait.
    """
    executor = Executor(ConnectionError(), ConnectionError())
    batcher = executor.batcher(delay=0.1)
    log = MemoryLog([*records("a"), *records("b", partition=1)])

    async def handle(context: EventContext) -> Incomplete:
        value = context.message.partition
        return batcher.add(BatchItems(context, context.key, executor.written).add(value))

    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle, batcher):
        await fake_clock.advance(0.5)
        assert [sorted(values) for values in executor.calls] == [[0, 1]]
        source.lose([P0])
        await fake_clock.advance(1.0)
        assert executor.calls[1:] == [[1]]
        assert batcher.inside == 2
        source.lose([P1])
        await fake_clock.advance(1.0)
        assert batcher.inside == 0
    assert len(executor.calls) == 2
    assert executor.told == []


async def test_a_drain_ends_during_the_wait_for_a_repetition(fake_clock: FakeClock) -> None:
    """G-T25, I9: at its deadline; the event is left to the next owner."""
    executor = Executor(*[ConnectionError() for _ in range(9)])
    policy = RetryPolicy(
        attempts=9, unlisted_attempts=9, backoff=Backoff(base=100.0, longest=100.0, jitter="none")
    )
    batcher = ItemBatcher(executor.execute, max_batch_size=1, retry=policy)
    log = log_of("a")

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, context.key, executor.written).add(1))

    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle, batcher, drain=2.0):
        await fake_clock.advance(0.5)
        began = fake_clock.now()
    assert fake_clock.now() - began <= 2.001
    assert executor.calls == [[1]]
    assert P0 not in log.positions
    await fake_clock.advance(0.0)
    assert len(asyncio.all_tasks()) == 1


def test_a_bad_retry_of_items() -> None:
    with pytest.raises(ConfigError, match="must be a RetryPolicy"):
        Executor().batcher(retry=3)
