"""Runs with a time budget: their end, their report, and where the next run continues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, Poisoned, Recorder, finite, log_of, records

from sluicegate import ConfigError, Consumer
from sluicegate.consumer import Commits, MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock


class Slow(Recorder):
    """Takes one second per message or batch."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    async def __call__(self, message: Message) -> object:
        await self.clock.sleep(1.0)
        return await super().__call__(message)

    async def batch(self, messages: list[Message]) -> None:
        """Handle a batch."""
        await self.clock.sleep(1.0)
        self.handled += messages


async def test_a_run_ends_with_its_budget_and_the_next_one_goes_on_there(
    fake_clock: FakeClock,
) -> None:
    """S16, S-T12: the running handler ends; all runs together handle each message once."""
    log, handler = log_of(*"aaaaa"), Slow(fake_clock)
    remaining = []
    for least in (3, 5):
        began = fake_clock.now()
        report = await finite(log, fake_clock, budget=2.5).run(handler)
        assert fake_clock.now() - began <= 3.5
        assert report.complete
        assert len(handler.offsets) == least
        remaining.append(report.work_remaining)
    assert remaining == [True, False]
    assert handler.offsets == [0, 1, 2, 3, 4]


async def test_a_run_of_batches_ends_with_its_budget(fake_clock: FakeClock) -> None:
    """S-T12: the drain handles a batch that is being formed."""
    log, handler = log_of(*"abcde"), Slow(fake_clock)
    consumer = finite(log, fake_clock, budget=0.5, concurrency=1)
    report = await consumer.run_batch(handler.batch, size=2)
    assert report.work_remaining
    report = await finite(log, fake_clock, budget=60.0).run_batch(handler.batch, size=2)
    assert not report.work_remaining
    assert sorted(handler.offsets) == [0, 1, 2, 3, 4]


async def test_a_budget_that_is_not_used_up_ends_nothing(fake_clock: FakeClock) -> None:
    log, handler = log_of(*"abc"), Recorder()
    report = await finite(log, fake_clock, budget=60.0).run(handler)
    assert not report.work_remaining
    assert fake_clock.now() < 60.0


@pytest.mark.parametrize("is_batch", [False, True])
async def test_work_remains_if_a_claim_is_lost_behind_the_end_of_the_source(
    fake_clock: FakeClock, is_batch: bool
) -> None:
    """S-T12: the messages inside are delivered again to a claim that this run does not fetch for."""
    log, handler = log_of(*"aaaaa"), Slow(fake_clock)
    source = MemorySource(log, ends=True, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock)
    run = consumer.run_batch(handler.batch, size=2) if is_batch else consumer.run(handler)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run)
        await fake_clock.advance(1.5)
        source.lose([P0])
    report = running.result()
    assert (report.at_end, report.work_remaining) == (False, True)
    await finite(log, fake_clock).run(handler)
    assert {*handler.offsets} == {0, 1, 2, 3, 4}


async def test_work_remains_if_a_claim_is_lost_before_its_position_is_stored(
    fake_clock: FakeClock,
) -> None:
    """S-T12: also during the last commit, when every message has been handled."""
    log = log_of(*"ab")
    source = MemorySource(log, ends=True, clock=fake_clock)
    source.script_commit(seconds=2.0)
    consumer = Consumer(source, commits=Commits(every=60.0), clock=fake_clock)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(consumer.run(handler := Recorder()))
        await fake_clock.advance(1.0)
        assert handler.offsets == [0, 1]
        source.lose([P0])
    report = running.result()
    assert (report.positions[P0], report.complete, report.work_remaining) == (0, True, True)


async def test_work_remains_behind_a_blocked_message_and_without_an_end(
    fake_clock: FakeClock,
) -> None:
    """A source without an end also counts: its next message may arrive at any time."""
    log, handler = log_of(*"aab"), Poisoned(0)
    report = await finite(log, fake_clock, poison="block").run(handler)
    assert [each.offset for each in report.blocked] == [0]
    assert report.work_remaining
    source = MemorySource(MemoryLog(records("a")), clock=fake_clock)
    report = await Consumer(source, clock=fake_clock, budget=5.0).run(Recorder())
    assert report.counts.acked == 1
    assert report.work_remaining


@pytest.mark.parametrize("wrong", [0, -1.0, "1"])
def test_a_wrong_budget_is_refused(fake_clock: FakeClock, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="budget"):
        finite(log_of("a"), fake_clock, budget=wrong)
