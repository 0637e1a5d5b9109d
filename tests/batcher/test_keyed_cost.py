"""Order per key: the memory of active and past keys, and the work for each item of a hot key.

White box: items are counted where they are looked at.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from gatherers import Keyed
from keyed_help import Item, key_of, on_virtual_time

import sluicegate.batcher.gathering.keyed
from sluicegate import Batcher, Limits
from sluicegate.batcher.gathering.eras import Waiting
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from sluicegate import Batch


def _many_keys(count: int) -> None:
    async def nothing(batch: Batch[int]) -> None:
        pass

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            nothing, key=lambda item: item, limits=Limits(workers=4), clock=clock
        ) as batcher:
            for item in range(1000):
                await batcher.add(item)
            await batcher.flush()
            gc.collect()
            before = len(gc.get_objects())
            for item in range(count):
                await batcher.add(item)
            await batcher.flush()
            await clock.run_until_idle()
            gc.collect()
            assert len(gc.get_objects()) <= before + 100  # 10,000 keys would be visible
            gatherer: Any = batcher._dispatcher.gathering.gatherer
            assert not gatherer.active
            assert not gatherer._eras._waiting
            assert not gatherer._eras._reasons
            assert batcher.tally().delivered == count + 1000

    on_virtual_time(main)


def test_keys_that_come_once_leave_nothing_behind() -> None:
    """consumer/C:O6: no lane, no task, no object."""
    _many_keys(10_000)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_million_keys_that_come_once_leave_nothing_behind() -> None:
    """consumer/C:O6."""
    _many_keys(1_000_000)


def _bytes_per_active_key(count: int) -> float:
    """With one item of each key in flight, and one waiting."""

    async def main(clock: FakeClock) -> float:
        is_open = asyncio.Event()

        async def write(batch: Batch[Item]) -> None:
            await is_open.wait()

        room = Limits(max_items=count // 4, workers=4, max_pending_items=2 * count)
        async with Batcher(write, key=key_of, limits=room, clock=clock) as batcher:
            spec = [Item(key, number) for number in range(2) for key in range(count)]
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            await batcher.add_many(spec)
            await clock.run_until_idle()
            assert batcher.stats().in_flight_batches == 4
            assert batcher.tally().queued == count
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            is_open.set()
        return (after - before) / count

    with FakeClock() as clock:
        return clock.run(main(clock))


def test_an_active_key_is_small() -> None:
    """consumer/C:O6: less than 600 bytes, including everything that the batcher keeps for its two
    items.
    """
    assert _bytes_per_active_key(2_000) < 600


@pytest.mark.soak
def test_each_of_many_active_keys_is_small() -> None:
    """consumer/C:O6."""
    assert _bytes_per_active_key(100_000) < 600


class Looked(Waiting[Any]):
    """Counts how often the entries behind it in its lane are examined."""

    __slots__ = ("_behind",)
    looks = 0

    @property
    def behind(self) -> Looked | None:
        Looked.looks += 1
        return self._behind

    @behind.setter
    def behind(self, entry: Looked | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._behind = entry


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("count", [100, 5_000])
def test_a_hot_key_has_at_most_three_items_looked_at_for_each(
    count: int, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/4.5: in batches of any size, whatever the number of waiting items."""
    monkeypatch.setattr(sluicegate.batcher.gathering.keyed, "Waiting", Looked)
    Looked.looks = 0
    gatherer = Keyed[Item](key=key_of, max_items=50, repeats=repeats, evicts=False)
    for number in range(count):
        gatherer.offer_one(Item("hot", number), 0, None, 0.0, "hot")
    went: list[Item] = []
    while (batch := gatherer.take(10.0)) is not None:
        went += batch.items
        gatherer.done(batch)
    assert went == [Item("hot", number) for number in range(count)]
    assert 0 < Looked.looks <= 3 * count
