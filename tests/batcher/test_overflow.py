"""Dropping instead of waiting: the surviving items, and the count of every loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from helpers import Gated
from sluicegate import Batcher, Limits, Observer, Outcome
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL = Limits(max_items=2, max_pending_items=6, max_delay=60.0)


class Drops(Observer):
    def __init__(self) -> None:
        self.items: list[Any] = []

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        assert (name, reason) == ("batcher", "overflow")
        self.items.extend(items)


async def test_drop_newest_keeps_the_old(fake_clock: FakeClock) -> None:
    """B-T9, batcher/4a.8: exact survivors, and the counter equals the losses."""
    sink, drops = Gated(), Drops()
    async with Batcher(sink, limits=SMALL, overflow="drop_newest", observers=[drops]) as batcher:
        receipts = [await batcher.submit(i) for i in range(9)]
        assert not batcher.try_add(9)
        sink.gate.set()
        outcomes = [await receipt.settled() for receipt in receipts]
    assert sink.items == [0, 1, 2, 3, 4, 5]
    assert outcomes == [Outcome.DELIVERED] * 6 + [Outcome.DROPPED] * 3
    assert drops.items == [6, 7, 8, 9]
    tally = batcher.tally()
    assert (tally.accepted, tally.dropped, tally.delivered, tally.refused, tally.enqueued) == (
        10,
        4,
        6,
        0,
        6,
    )
    tally.verify()


async def test_drop_oldest_keeps_the_new(fake_clock: FakeClock) -> None:
    """B-T9: only items that no worker has taken are dropped; items in flight stay."""
    sink, drops = Gated(), Drops()
    async with Batcher(sink, limits=SMALL, overflow="drop_oldest", observers=[drops]) as batcher:
        receipts = [await batcher.submit(i) for i in range(8)]
        assert batcher.try_add(8)
        await batcher.add_many([9, 10])
        sink.gate.set()
        outcomes = [await receipt.settled() for receipt in receipts]
    assert sink.items == [0, 1, 7, 8, 9, 10]
    assert drops.items == [2, 3, 4, 5, 6]
    assert outcomes == [Outcome.DELIVERED] * 2 + [Outcome.DROPPED] * 5 + [Outcome.DELIVERED]
    assert batcher.tally().dropped == 5


async def test_drop_oldest_drops_the_new_where_nothing_else_can_go(fake_clock: FakeClock) -> None:
    """All pending items are in flight."""
    sink = Gated()
    limits = Limits(max_items=2, max_pending_items=6, workers=2, max_delay=0.1)
    async with Batcher(sink, limits=limits, overflow="drop_oldest") as batcher:
        await batcher.add_many(range(4))
        receipt = await batcher.submit(4)
        await batcher.add(5)
        with pytest.raises(Exception, match="dropped"):
            for item in range(6, 8):
                await batcher.add(item)
            await receipt
        sink.gate.set()
    assert sink.items == [0, 1, 2, 3, 6, 7]


@examples(30, long=300)
@given(
    policy=st.sampled_from(["drop_newest", "drop_oldest"]),
    steps=st.lists(st.sampled_from(["add", "submit", "try", "many", "write"]), max_size=40),
    workers=st.integers(1, 3),
)
def test_dropping_follows_a_simple_model(policy: Any, steps: list[str], workers: int) -> None:
    """B-T9: every accepted item is delivered or dropped; no producer waits; fences pass."""
    sink = Gated()

    async def main() -> None:
        limits = Limits(
            max_items=2, workers=workers, max_pending_items=2 * (workers + 1), max_delay=60.0
        )
        async with Batcher(sink, limits=limits, overflow=policy) as batcher:
            count = 0
            for step in steps:
                if step == "add":
                    await batcher.add(count)
                elif step == "submit":
                    await batcher.submit(count)
                elif step == "try":
                    batcher.try_add(count)
                elif step == "many":
                    await batcher.add_many([count, count + 1])
                    count += 1
                else:
                    sink.gate.set()
                    await clock.run_until_idle()
                    sink.gate.clear()
                    continue
                count += 1
                batcher.tally().verify()
                assert batcher.tally().inside <= limits.ledger_items
            assert clock.now() == 0.0
            sink.gate.set()
            assert await batcher.flush()
            tally = batcher.tally()
            assert tally.accepted == count == tally.delivered + tally.dropped
            assert sorted(sink.items) == sorted(set(sink.items))

    with FakeClock() as clock:
        clock.run(main())
