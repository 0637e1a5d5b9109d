"""The fixed reference works as documented, so that ratios to it are meaningful."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.peers.skeleton import Skeleton

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

LINGER = 0.2


class Destination:
    """Stores its input. While `gate` is closed, writes wait."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches: list[tuple[int, ...]] = []
        self.at_once = self.most_at_once = 0

    async def write(self, batch: tuple[int, ...]) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
            self.batches.append(batch)
        finally:
            self.at_once -= 1

    @property
    def items(self) -> list[int]:
        return [item for batch in self.batches for item in batch]


def skeleton(destination: Destination, **settings: Any) -> Skeleton[int]:
    chosen: dict[str, Any] = {"size": 10, "linger": LINGER, "depth": 1000, **settings}
    return Skeleton(destination.write, **chosen)


@pytest.mark.parametrize("size", [1, 10, 100, 500])
@pytest.mark.parametrize("count", [0, 1, 1234])
async def test_everything_is_delivered_in_order(
    size: int, count: int, fake_clock: FakeClock
) -> None:
    destination = Destination()
    async with skeleton(destination, size=size) as batcher:
        for item in range(count):
            await batcher.add(item)
    assert destination.items == list(range(count))
    assert batcher.delivered == count
    assert batcher.inside == 0
    assert all(len(batch) == size for batch in destination.batches[:-1])


@pytest.mark.parametrize("size", [1, 10])
async def test_its_ledger_is_bounded_however_many_producers_there_are(
    size: int, fake_clock: FakeClock
) -> None:
    destination = Destination()
    destination.gate.clear()
    most = 0

    async def produce(start: int) -> None:
        nonlocal most
        for item in range(start, start + 50):
            await batcher.add(item)
            most = max(most, batcher.inside)

    async with skeleton(destination, size=size, depth=40) as batcher:
        producers = [asyncio.create_task(produce(start)) for start in range(0, 1000, 50)]
        await fake_clock.run_until_idle()
        assert batcher.inside == 40
        destination.gate.set()
        await asyncio.gather(*producers)
    assert most == 40
    assert sorted(destination.items) == list(range(1000))


async def test_a_producer_that_gives_up_waiting_leaves_its_room_to_the_next(
    fake_clock: FakeClock,
) -> None:
    destination = Destination()
    destination.gate.clear()
    async with skeleton(destination, size=1, depth=1) as batcher:
        await batcher.add(0)
        producers = [asyncio.create_task(batcher.add(item)) for item in (1, 2, 3)]
        await fake_clock.run_until_idle()
        producers[0].cancel()
        destination.gate.set()
        await asyncio.gather(*producers, return_exceptions=True)
    assert destination.items == [0, 2, 3]


async def test_a_batch_that_is_not_full_leaves_after_the_linger(fake_clock: FakeClock) -> None:
    destination = Destination()
    async with skeleton(destination) as batcher:
        await batcher.add(1)
        await fake_clock.sleep(LINGER * 0.9)
        assert destination.batches == []
        await fake_clock.sleep(LINGER * 0.2)
        assert destination.batches == [(1,)]
        await batcher.add(2)
        await fake_clock.sleep(LINGER * 1.1)
        assert destination.batches == [(1,), (2,)]


async def test_no_more_batches_fly_than_there_are_workers(fake_clock: FakeClock) -> None:
    destination = Destination()
    destination.gate.clear()
    async with skeleton(destination, size=1, workers=3) as batcher:
        for item in range(10):
            await batcher.add(item)
        await fake_clock.run_until_idle()
        destination.gate.set()
    assert destination.most_at_once == 3
    assert batcher.delivered == 10


async def test_a_flush_that_hangs_or_fails_is_counted_and_the_next_goes_on(
    fake_clock: FakeClock,
) -> None:
    async def write(batch: tuple[int, ...]) -> None:
        if batch == (0,):
            await asyncio.sleep(3600)
        if batch == (1,):
            raise OSError("refused")

    async with Skeleton(write, size=1, linger=LINGER, depth=100, timeout=1.0) as batcher:
        for item in range(3):
            await batcher.add(item)
    assert (batcher.delivered, batcher.failed) == (1, 2)


async def test_other_tasks_run_between_the_adds_of_a_tight_loop(fake_clock: FakeClock) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    async with skeleton(Destination(), size=500, depth=10_000) as batcher:
        for item in range(5_000):
            await batcher.add(item)
        assert turns > 5_000 / 200
    beside.cancel()
