"""Jobs of a lost claim: the partition's next claim in this process does not wait for them."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, log_of, records
from jobs.jobs_help import running

from sluicegate import RetryPolicy, ThrottledError
from sluicegate.consumer import MemoryLog, MemorySource, Position
from sluicegate.consumer.jobs import BatchItems, EventContext, Incomplete, ItemBatcher, JobScheduler

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


class Hanging:
    """Jobs of which the first never end."""

    def __init__(self, hang: int, **options: Any) -> None:
        self.hang = hang
        self.began: list[object] = []
        self.jobs: JobScheduler[object, object] = JobScheduler(self.process, **options)

    async def process(self, key: object, value: object) -> None:
        """Hang on the first calls."""
        self.began.append(value)
        if len(self.began) <= self.hang:
            await asyncio.Future()

    async def handle(self, context: EventContext) -> Incomplete:
        """Schedule a job with the key of the record."""
        return self.jobs.schedule(context, context.key, context.message.offset)


async def test_the_key_of_a_job_that_hangs_is_free_for_the_next_claim(
    fake_clock: FakeClock,
) -> None:
    """G-T16: the job is cancelled, as at the end of a revoke."""
    hanging, log = Hanging(1), log_of("a", "a", "b")
    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, hanging.handle, hanging.jobs) as consumer:
        await fake_clock.advance(1.0)
        assert hanging.began == [0, 2]
        source.lose([P0])
        assert consumer.stats().in_flight.messages == 0
        source.assign([P0])
        await fake_clock.advance(1.0)
        assert hanging.began == [0, 2, 0, 1]
    assert log.positions[P0] == Position(3)


async def test_events_of_a_lost_claim_take_no_room(fake_clock: FakeClock) -> None:
    """consumer/O4, G-T16: neither in the window nor in the scheduler, so other partitions
    continue.
    """
    hanging = Hanging(2, concurrency=2, max_keys=2)
    log = MemoryLog([*records("abc"), *records("de", partition=1)])
    source = MemorySource(log, partitions=[P0], clock=fake_clock)
    async with running(source, fake_clock, hanging.handle, hanging.jobs, in_flight=3):
        await fake_clock.advance(1.0)
        assert hanging.began == [0, 1]
        assert hanging.jobs.stats().without_room == 1
        source.lose([P0])
        source.assign([P1])
        await fake_clock.advance(0.0)
        assert hanging.jobs.stats().key_count == 0
        source.assign([P0])
        await fake_clock.advance(0.0)
    assert log.positions == {P0: Position(3), P1: Position(2)}


async def test_a_long_backoff_of_a_lost_job_ends_at_once(fake_clock: FakeClock) -> None:
    """G-T16: the next claim does not wait for it."""
    tries = 0

    async def process(key: object, value: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ThrottledError("busy", retry_after=200.0)

    jobs: JobScheduler[object, None] = JobScheduler(process, retry=RetryPolicy())

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    log = log_of("a")
    source = MemorySource(log, clock=fake_clock)
    async with running(source, fake_clock, handle, jobs):
        await fake_clock.advance(1.0)
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(1.0)
        assert tries == 2
    assert log.positions[P0] == Position(1)


@pytest.mark.parametrize("kind", [JobScheduler, ItemBatcher])
async def test_many_events_leave_in_time_in_proportion_to_their_number(
    fake_clock: FakeClock, kind: type
) -> None:
    """consumer/4.1: the loop is not blocked while a claim ends."""
    few, many = [await _calls_of_a_loss(fake_clock, kind, count) for count in (400, 1600)]
    assert many < 6 * few


async def _calls_of_a_loss(clock: FakeClock, kind: type, count: int) -> int:
    """Return the number of calls that removing the events of a lost claim takes."""
    calls = 0

    async def hang(*_: object) -> None:
        await asyncio.Future()

    async def written(*_: object) -> None:
        pass

    def profile(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    work: Any = kind(hang) if kind is JobScheduler else kind(hang, max_batch_size=10)

    async def handle(context: EventContext) -> Incomplete:
        if kind is JobScheduler:
            return work.schedule(context, context.key, None)  # type: ignore[no-any-return]
        group = BatchItems(context, context.key, written).add(1)
        return work.add(group)  # type: ignore[no-any-return]

    source = MemorySource(log_of(*[at % 40 for at in range(count)]), clock=clock)
    async with running(source, clock, handle, work, in_flight=2 * count) as consumer:
        await clock.advance(1.0)
        assert consumer.stats().in_flight.messages == count
        sys.setprofile(profile)
        try:
            source.lose([P0])
        finally:
            sys.setprofile(None)
        assert consumer.stats().in_flight.messages == 0
    return calls


async def test_an_interjection_of_a_lost_claim_is_abandoned_at_once(fake_clock: FakeClock) -> None:
    """consumer/G18: its caller does not wait for the job."""
    hanging = Hanging(1)
    source = MemorySource(log_of(), partitions=[P0], clock=fake_clock)
    async with running(source, fake_clock, hanging.handle, hanging.jobs) as consumer:
        asked = asyncio.ensure_future(consumer.interject(hanging.handle))
        await fake_clock.advance(0.0)
        source.lose([P0])
        await fake_clock.advance(0.0)
        assert "was revoked meanwhile" in str(asked.exception())
