"""The slow path: it yields to other tasks, refuses items that are unmeasurable or too large, and
accounts for waiting producers.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import Batcher, BlockingBatcher, Limits, Observer
from sluicegate.batcher import Tenants
from sluicegate.errors import ItemTooLarge, LedgerFull
from sluicegate.testing import BlockingSink, FakeSink

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


def limits(**given: Any) -> Limits:
    most: dict[str, Any] = {"max_items": 5, "max_delay": 1.0, "max_pending_items": 10}
    return Limits(**{**most, **given})


@pytest.mark.parametrize(
    ("overflow", "settings"),
    [
        ("drop_oldest", {"tenant": str}),
        ("drop_oldest", {"key": str, "size_of": int, "limits": limits(max_pending_bytes=100)}),
        ("drop_oldest", {"size_of": int, "limits": limits(max_pending_bytes=100)}),
        ("drop_newest", {}),
        ("drop_newest", {"tenant": str}),
    ],
)
async def test_a_producer_that_never_waits_lets_others_run(
    fake_clock: FakeClock, overflow: Any, settings: dict[str, Any]
) -> None:
    """batcher/4b.9: dropped and measured items, and items of keys or tenants, count too."""
    others: list[int] = []
    sink: BlockingSink[int] = BlockingSink()
    options: dict[str, Any] = {"limits": limits(), **settings}
    async with Batcher(sink, overflow=overflow, clock=fake_clock, **options) as batcher:
        asyncio.get_running_loop().call_soon(others.append, 1)
        for _ in range(100):
            await batcher.add(1)
        assert others, "an item costs more by this way, so fewer of them are many"
        sink.release()


async def test_a_producer_that_is_refused_again_and_again_lets_others_run(
    fake_clock: FakeClock,
) -> None:
    """batcher/4b.9: otherwise the ledger would never be freed."""
    async with Batcher(
        FakeSink[int](), overflow="reject", limits=limits(), clock=fake_clock
    ) as batcher:
        for number in range(30):
            for _ in range(1000):
                try:
                    await batcher.add(number)
                except LedgerFull:
                    continue
                break
        assert batcher.tally().accepted == 30


@pytest.mark.parametrize("size", [math.nan, 2.5, "5", None])
async def test_a_size_that_is_no_whole_number_is_refused(fake_clock: FakeClock, size: Any) -> None:
    """NaN, which never equals itself, would fill the ledger forever."""
    async with Batcher(
        FakeSink[Any](),
        size_of=lambda _: size,
        limits=limits(max_pending_bytes=10),
        clock=fake_clock,
    ) as batcher:
        with pytest.raises(TypeError, match="must return a whole number of bytes"):
            await batcher.add("a")
        with pytest.raises(TypeError, match="must return a whole number of bytes"):
            batcher.try_add("a")
        assert batcher.tally().accepted == 0


async def test_a_size_below_nothing_is_refused(fake_clock: FakeClock) -> None:
    """It would admit other items beyond the limit."""
    async with Batcher(
        FakeSink[Any](), size_of=int, limits=limits(max_pending_bytes=10), clock=fake_clock
    ) as batcher:
        with pytest.raises(ValueError, match="size_of returned -1000"):
            await batcher.add_many([1, -1000])
        assert batcher.tally().accepted == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"limits": limits(max_bytes=10), "oversize": "reject"},
        {"limits": limits(max_bytes=10, max_pending_bytes=40), "overflow": "drop_oldest"},
        {"limits": limits(max_bytes=10), "tenant": str, "tenants": Tenants(max_pending_bytes=40)},
    ],
)
async def test_what_is_too_large_finds_no_way_in_without_waiting_either(
    fake_clock: FakeClock, settings: dict[str, Any]
) -> None:
    """batcher/4a.3, B-T9: it is refused, and evicts no other item."""
    async with Batcher(FakeSink[int](), size_of=int, clock=fake_clock, **settings) as batcher:
        await batcher.add(3)
        with pytest.raises(ItemTooLarge):
            await batcher.add(50)
        assert not batcher.try_add(50)
        tally = batcher.tally()
    assert (tally.accepted, tally.refused, tally.dropped) == (1, 2, 0)


@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
def test_what_is_too_large_finds_no_way_in_from_a_thread_either(overflow: Any) -> None:
    """batcher/4a.3, B-T9."""
    sink: FakeSink[int] = FakeSink()
    with BlockingBatcher(
        sink, size_of=int, overflow=overflow, oversize="reject", limits=limits(max_bytes=10)
    ) as batcher:
        assert batcher.try_add(3)
        assert not batcher.try_add(50)
        tally = batcher.tally()
    assert (tally.accepted, tally.refused, tally.dropped) == (1, 1, 0)


async def test_what_a_drop_tells_may_add_something(fake_clock: FakeClock) -> None:
    """The limit holds although an observer adds an item during the drop; that item is accepted
    before the drop is reported.
    """

    class AddsMore(Observer):
        def on_dropped(self, name: str, items: Any, reason: str) -> None:
            inside.append(batcher.tally().inside)
            if len(inside) == 1:
                batcher.try_add("in between")

    inside: list[int] = []
    sink: BlockingSink[Any] = BlockingSink()
    batcher = Batcher(
        sink, overflow="drop_oldest", limits=limits(), observers=[AddsMore()], clock=fake_clock
    )
    async with batcher:
        await batcher.add_many(range(10))
        await batcher.add("new")
        assert (batcher.tally().inside, batcher.tally().dropped) == (10, 2)
        sink.release()
    assert inside == [10, 10]
