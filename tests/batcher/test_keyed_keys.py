"""Order per key: which values are keys, on every path of an item into the batcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from keyed_help import Destination, Item, items, key_of, limits, on_virtual_time

from sluicegate import Batcher, BlockingBatcher, ConfigError, Outcome, WriteResult
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from sluicegate import Batch


def test_an_item_whose_key_cannot_be_one_is_refused_alone() -> None:
    """consumer/C:O3: on every path it leaves no trace, and its receipt is not assigned to another
    item.
    """
    sink = Destination()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(max_items=100), clock=clock) as batcher:
            await batcher.add(Item("a", 0))
            with pytest.raises(TypeError, match="cannot be a key"):
                await batcher.add(Item([], 0))
            with pytest.raises(TypeError):
                await batcher.submit(Item({}, 0))
            with pytest.raises(TypeError):
                batcher.try_add(Item({}, 0))
            with pytest.raises(TypeError):
                await batcher.add_many([Item("b", 0), Item({}, 0)])
            await batcher.add(Item("c", 0))
            receipt = await batcher.submit(Item("a", 1))
            await clock.advance(0.0)
            assert not receipt.done
            assert batcher.tally().accepted == 3
            await batcher.flush()
            assert receipt.outcome is Outcome.DELIVERED

    on_virtual_time(main)
    assert sink.applied == {"a": [0, 1], "c": [0]}


def test_the_sink_sees_keys_as_they_were_given() -> None:
    """consumer/C:O3: four keys that look alike are four lanes."""
    seen: list[object] = []

    async def write(batch: Batch[object]) -> None:
        seen.extend(batch.keys or ())

    async def main(clock: FakeClock) -> None:
        async with Batcher(write, key=lambda item: item, clock=clock) as batcher:
            await batcher.add_many([1, True, 1.0, (1, True), b"1", None])
            await batcher.flush()
            assert batcher.stats().flushes == {"manual": 1}

    on_virtual_time(main)
    assert seen == [1, True, 1.0, (1, True), b"1", None]
    assert [type(key) for key in seen] == [int, bool, float, tuple, bytes, type(None)]


@pytest.mark.parametrize("kind", [Batcher, BlockingBatcher])
def test_a_key_function_is_looked_at_before_anything_starts(kind: Any) -> None:
    """batcher/B46, G-T17."""

    async def key(item: object) -> object:
        return item

    for bad in ("key", key):
        with pytest.raises(ConfigError, match=r"key=.*must be a function of an item"):
            kind(Destination(), key=bad)


def test_receipts_belong_to_their_items_whatever_way_these_take() -> None:
    """B-T35: into the open batch, into a lane, and on the slow path."""

    async def perform(sink: Destination, batch: Batch[Item]) -> WriteResult:
        return WriteResult.from_outcomes(batch, [None] * len(batch), details=dict(enumerate(batch)))

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            Destination(perform), key=key_of, limits=limits(max_items=4), clock=clock
        ) as batcher:
            spec = items(*"abacabadabacabae")
            receipts = [await batcher.submit(item) for item in spec]
            await batcher.flush()
            assert [receipt.detail for receipt in receipts] == spec

    on_virtual_time(main)


def test_threads_add_to_a_keyed_batcher() -> None:
    """batcher/4a.10: `BlockingBatcher` passes the key on, and refuses an invalid one in the adding
    thread.
    """
    sink = Destination()
    with BlockingBatcher(sink, key=key_of, limits=limits()) as batcher:
        for item in items(*"abcabcaab"):
            batcher.add(item)
        with pytest.raises(TypeError, match="cannot be a key"):
            batcher.add(Item([], 0))
        with pytest.raises(TypeError, match="cannot be a key"):
            batcher.try_add(Item([], 0))
        assert batcher.try_add(Item("d", 0))
        receipt = batcher.submit(Item("d", 1))
        batcher.flush()
        assert receipt.outcome is Outcome.DELIVERED
    assert sink.applied == {"a": [0, 1, 2, 3], "b": [0, 1, 2], "c": [0, 1], "d": [0, 1]}
    assert not sink.broken
