"""`max_per_key`: a hot key delays its own records, not those of others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, P1, records

from sluicegate import Consumer
from sluicegate.consumer import InFlight, MemoryLog, MemorySource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate.consumer import Fetched, SourceClaim, TopicPartition
    from sluicegate.testing import FakeClock


class Asked(MemorySource):
    """Records the partitions of the requests, in order."""

    def __init__(self, log: MemoryLog, clock: FakeClock) -> None:
        super().__init__(log, clock=clock)
        self.asked: list[list[TopicPartition]] = []

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        self.asked.append([claim.partition for claim in claims])
        return await super().fetch(claims, most)


class Stuck:
    """Handles all keys but one, which waits for `gate`."""

    def __init__(self, key: object = "hot") -> None:
        self.key = key
        self.gate = asyncio.Event()
        self.handled: list[tuple[object, int]] = []

    async def __call__(self, message: Message) -> None:
        if message.key == self.key:
            await self.gate.wait()
        self.handled.append((message.key, message.offset))

    def count(self, key: object) -> int:
        return [each for each, _ in self.handled].count(key)


@pytest.mark.parametrize(("most", "others"), [(3, 100), (None, 20)])
async def test_other_partitions_get_the_room_before_a_crowded_one(
    fake_clock: FakeClock, most: int | None, others: int
) -> None:
    """O-T24: without the limit, the hot key's partition would take every second turn and fill the
    window while the other partition still has records.
    """
    log = MemoryLog([*records(["hot"] * 100), *records(["other"] * 100, partition=1)])
    handler = Stuck()
    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, in_flight=InFlight(20, per_key=most, fetch_max=4))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(10.0)
        assert handler.count("other") == others
        handler.gate.set()
        await fake_clock.advance(10.0)
        hot = [offset for key, offset in handler.handled if key == "hot"]
        assert hot == list(range(100))
        assert handler.count("other") == 100
        consumer.stop()
        await run


async def test_other_keys_of_the_partition_go_on_until_the_window_is_full(
    fake_clock: FakeClock,
) -> None:
    """O-T24, consumer/C:O2: held-back records count in the window, and only they fill it."""
    keys = ["hot" if place % 2 else f"other-{place}" for place in range(100)]
    log, handler = MemoryLog(records(keys)), Stuck()
    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, in_flight=InFlight(20, per_key=2))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(10.0)
        assert 15 <= consumer.stats().in_flight.messages <= 20
        handler.gate.set()
        await fake_clock.advance(10.0)
        assert [offset for key, offset in handler.handled if key == "hot"] == [*range(1, 100, 2)]
        consumer.stop()
        await run


async def test_a_claim_has_its_turn_again_when_its_lane_has_drained(fake_clock: FakeClock) -> None:
    log = MemoryLog([*records(["hot"] * 8), *records("", partition=1)], partitions=[P1])
    handler, source = Stuck(), Asked(log, fake_clock)
    consumer = Consumer(source, clock=fake_clock, in_flight=InFlight(per_key=2))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        for _ in range(4):
            await fake_clock.advance(1.0)
            log.produce("t", b"", key="other", partition=1)
        assert source.asked[1:] == [[P1, P0]] * (len(source.asked) - 1)
        crowded = len(source.asked)
        handler.gate.set()
        for _ in range(4):
            await fake_clock.advance(1.0)
            log.produce("t", b"", key="other", partition=1)
        assert [P0, P1] in source.asked[crowded:]
        consumer.stop()
        await run


async def test_the_bytes_of_waiting_records_are_bounded_in_all(fake_clock: FakeClock) -> None:
    """consumer/C:N10, consumer/C:B1: records of a hot key count by their bytes."""
    log, handler = MemoryLog(records(["hot"] * 100)), Stuck()
    source = MemorySource(log, clock=fake_clock)
    options = {"in_flight": InFlight(bytes=100, per_key=2, size_of=lambda _: 10)}
    consumer = Consumer(source, clock=fake_clock, **options)  # type: ignore[arg-type]
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(1.0)
        assert consumer.stats().in_flight.bytes == 100
        handler.gate.set()
        await fake_clock.advance(1.0)
        assert handler.count("hot") == 100
        consumer.stop()
        await run


async def test_a_claim_that_ends_is_forgotten(fake_clock: FakeClock) -> None:
    log, handler = MemoryLog(records(["hot"] * 20)), Stuck()
    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, in_flight=InFlight(per_key=2))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(1.0)
        engine = consumer._open()
        claim = engine.claims.get(P0)
        assert claim is not None
        crowded = engine.schedule.crowded
        assert crowded is not None
        assert crowded.holds_back(claim)
        source.lose([P0])
        assert not crowded.holds_back(claim)
        handler.gate.set()
        consumer.stop()
        await run
