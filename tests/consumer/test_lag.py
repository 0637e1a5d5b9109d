"""The lag of a consumer behind its source.

White box: the type of a lag, which no package exports.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, P1, Recorder, log_of, records
from watch_help import Gate, running

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource, Record, Unread
from sluicegate.consumer.memory.source import Crashed
from sluicegate.consumer.operating.health import Lag

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sluicegate.consumer import SourceClaim
    from sluicegate.testing import FakeClock


def stamped(clock: FakeClock, keys: str, partition: int = 0) -> MemoryLog:
    """A log of records with the current time."""
    now = int(clock.wall_time() * 1000)
    return MemoryLog(
        [Record("t", partition, place, key, timestamp=now) for place, key in enumerate(keys)]
    )


async def test_messages_are_the_end_less_the_position_and_seconds_the_oldest_ones_age(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:N5: settled records behind the oldest unfinished one count as messages."""
    gate = Gate(b=None, c=None)
    async with running(fake_clock, stamped(fake_clock, "abc"), gate) as consumer:
        await fake_clock.advance(30.0)
        assert await consumer.lag() == {P0: Lag(3, 30.0)}
        gate.open()
        await fake_clock.run_until_idle()
        assert await consumer.lag() == {P0: Lag(0, 0.0)}


async def test_holes_count_as_messages_while_they_lie_ahead(fake_clock: FakeClock) -> None:
    log = MemoryLog([Record("t", 0, 10, "a", timestamp=1), Record("t", 0, 100, "b", timestamp=1)])
    async with running(fake_clock, log, Gate(b=None)) as consumer:
        assert (await consumer.lag())[P0].messages == 91


async def test_seconds_are_unknown_before_delivery_and_without_a_timestamp(
    fake_clock: FakeClock,
) -> None:
    """A paused partition with a backlog is not 0 seconds behind."""
    log = MemoryLog([*records("a"), *records("b", 1)])
    source = MemorySource(log, clock=fake_clock)
    async with running(fake_clock, source, Gate()) as consumer:
        assert await consumer.lag() == {P0: Lag(1, None), P1: Lag(1, None)}
    async with running(fake_clock, MemorySource(log, clock=fake_clock), Recorder()) as consumer:
        consumer.pause(P0)
        log.append(Record("t", 0, 1, timestamp=int(fake_clock.wall_time() * 1000)))
        assert (await consumer.lag())[P0] == Lag(1, None)


async def test_a_record_of_the_future_is_not_negative(fake_clock: FakeClock) -> None:
    log = MemoryLog([Record("t", 0, 0, "a", timestamp=int(fake_clock.wall_time() * 1000) + 5000)])
    async with running(fake_clock, log, Gate()) as consumer:
        assert await consumer.lag() == {P0: Lag(1, 0.0)}


class Slow(MemorySource):
    """Takes one second to return its end offsets."""

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return them after one second."""
        told = await super().ends(claims)
        await asyncio.sleep(1.0)
        return told


async def test_a_partition_that_is_lost_meanwhile_is_left_out(fake_clock: FakeClock) -> None:
    source = Slow(MemoryLog([*records("a"), *records("b", 1)]), clock=fake_clock)
    async with running(fake_clock, source, Recorder()) as consumer:
        fake_clock.call_at(fake_clock.now() + 0.5, lambda: source.lose([P0]))
        assert await consumer.lag() == {P1: Lag(0, 0.0)}


class Counts(MemorySource):
    """Counts the remaining records itself: ten per offset."""

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        """Return the count after one second."""
        await asyncio.sleep(1.0)
        ends = await super().ends(positions)
        left = {claim: 10 * (end - positions[claim]) for claim, end in ends.items()}
        return {claim: Unread(count, count / 2) for claim, count in left.items()}


async def test_a_source_that_counts_tells_the_lag_itself(fake_clock: FakeClock) -> None:
    """consumer/C:N5: from the first unfinished record on, with the age of the oldest one."""
    log, gate = MemoryLog([*records("abc"), *records("d", 1)]), Gate(b=None)
    async with running(fake_clock, Counts(log, clock=fake_clock), gate) as consumer:
        assert await consumer.lag() == {P0: Lag(30, 15.0), P1: Lag(10, 5.0)}
        gate.open()
        await fake_clock.run_until_idle()
        assert await consumer.lag() == {P0: Lag(0, 0.0), P1: Lag(0, 0.0)}


async def test_a_partition_that_is_lost_while_the_source_counts_is_left_out(
    fake_clock: FakeClock,
) -> None:
    source = Counts(MemoryLog([*records("a"), *records("b", 1)]), clock=fake_clock)
    async with running(fake_clock, source, Recorder()) as consumer:
        fake_clock.call_at(fake_clock.now() + 0.5, lambda: source.lose([P0]))
        assert await consumer.lag() == {P1: Lag(0, 0.0)}


async def test_an_error_of_the_source_is_raised(fake_clock: FakeClock) -> None:
    source = MemorySource(log_of("a"), clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock)
    async with consumer:
        source.crash()
        with pytest.raises(Crashed):
            await consumer.lag()
