"""What has happened to an item when a call of a batcher with a spool returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from spooling.spools import spooled, stored

from sluicegate import (
    AddTimeout,
    BlockingBatcher,
    ItemFailed,
    Limits,
    Outcome,
    PermanentError,
)
from sluicegate.errors import DeliverTimeout
from sluicegate.flow import Spool
from sluicegate.sinks import MemorySink
from sluicegate.testing import BlockingSink, ScriptedSink, hang

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sluicegate import Batcher
    from sluicegate.testing import FakeClock

    Call = Callable[[Batcher[Any]], Awaitable[object]]


async def submitted(batcher: Batcher[Any]) -> object:
    return await (await batcher.submit(1))


async def tried(batcher: Batcher[Any]) -> object:
    return batcher.try_add(1)


CALLS: dict[str, tuple[Call, list[int]]] = {
    "deliver": (lambda batcher: batcher.deliver(1), [1]),
    "submit": (submitted, [1]),
    "add": (lambda batcher: batcher.add(1), [1]),
    "add_many": (lambda batcher: batcher.add_many([1, 2, 3]), [1, 2, 3]),
    "add_from": (lambda batcher: batcher.add_from(iter([1, 2, 3])), [1, 2, 3]),
}


@pytest.mark.parametrize("durability", ["commit", "os"])
@pytest.mark.parametrize(("call", "items"), CALLS.values(), ids=CALLS)
async def test_an_item_is_on_disk_when_the_call_returns(
    tmp_path: Path, fake_clock: FakeClock, call: Call, items: list[int], durability: str
) -> None:
    folder, sink = tmp_path / "spool", BlockingSink[int]()
    async with spooled(folder, sink, fake_clock, {"durability": durability}) as batcher:
        told = await call(batcher)
        assert stored(folder) == items
        assert told in {None, Outcome.SPOOLED, 3}
        assert batcher.stats().tally.spooled == len(items)
        sink.release()
    assert sink.applied == items
    assert stored(folder) == []


@pytest.mark.parametrize(
    ("call", "wait"),
    [
        (tried, "disk"),
        (tried, "memory"),
        *((CALLS[name][0], "memory") for name in ("add", "add_many", "add_from")),
    ],
)
async def test_a_call_that_does_not_wait_for_the_disk_returns_at_once(
    tmp_path: Path, fake_clock: FakeClock, call: Call, wait: str
) -> None:
    folder, sink = tmp_path / "spool", MemorySink[int]()
    async with spooled(folder, sink, fake_clock, {"wait": wait}) as batcher:
        await call(batcher)
        assert stored(folder) == []
        assert batcher.stats().tally.spooled == 0
    assert sink.items in ([1], [1, 2, 3])


async def test_deliver_waits_for_the_disk_with_wait_memory_too(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    folder = tmp_path / "spool"
    async with spooled(folder, MemorySink[int](), fake_clock, {"wait": "memory"}) as batcher:
        assert await batcher.deliver(1) is Outcome.SPOOLED
        assert stored(folder) == [1]


@pytest.mark.parametrize("several", [False, True])
async def test_a_full_spool_times_out_with_the_receipt_of_an_accepted_item(
    tmp_path: Path, fake_clock: FakeClock, several: bool
) -> None:
    folder, sink = tmp_path / "spool", BlockingSink[int]()
    limits = Limits(max_items=1000, max_delay=0.01, max_pending_items=2000)
    async with spooled(folder, sink, fake_clock, {"max_items": 1000}, limits=limits) as batcher:
        await batcher.add_many([2] * 1000)
        with pytest.raises(DeliverTimeout) as late:
            await (batcher.add_many([3, 4], timeout=1) if several else batcher.add(3, timeout=1))
        assert fake_clock.now() == pytest.approx(1, abs=0.1)
        assert stored(folder) == [2] * 1000
        while batcher.try_add(0):
            pass
        with pytest.raises(AddTimeout):
            await batcher.add(-1, timeout=1)
        sink.release()
        assert await late.value.receipt is Outcome.SPOOLED
    assert sink.applied[999:1001] == [2, 3]
    assert -1 not in sink.applied


async def test_a_cancelled_add_may_have_stored_its_item_and_harms_no_other(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    sink = BlockingSink[int]()
    async with spooled(tmp_path / "spool", sink, fake_clock, {"max_items": 1}) as batcher:
        await batcher.add(1)
        first, second = (asyncio.create_task(batcher.add(n)) for n in (2, 3))
        await fake_clock.advance(1)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        sink.release()
        await second
    assert sink.applied == [1, 2, 3]


def test_a_blocking_batcher_stores_items_before_its_calls_return(tmp_path: Path) -> None:
    """And sends the rest of its last time when it is opened again."""
    folder, sink = tmp_path / "spool", ScriptedSink[Any]([hang()])
    with BlockingBatcher(
        sink, spool=Spool(folder), on_failure=lambda *_: None, shutdown_deadline=0.2
    ) as batcher:
        assert batcher.deliver(1) is Outcome.SPOOLED
        batcher.add(2, timeout=60)
        batcher.add_many([3, 4])
        assert batcher.submit(5).result() is Outcome.SPOOLED
        with pytest.raises(ItemFailed) as failed:
            batcher.add_many([6, object(), 7])
        assert isinstance(failed.value.__cause__, PermanentError)
        assert stored(folder) == [1, 2, 3, 4, 5, 6, 7]
    report = batcher.report
    assert report is not None
    assert report.complete
    with batcher:
        batcher.add(8)
    assert sink.applied == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_blocking_add_times_out_with_its_receipt(tmp_path: Path) -> None:
    folder, sink = tmp_path / "spool", ScriptedSink[int]([hang()])
    batcher = BlockingBatcher(sink, spool=Spool(folder, max_items=1), shutdown_deadline=0.1)
    batcher.start()
    batcher.add(1)
    with pytest.raises(DeliverTimeout) as late:
        batcher.add(2, timeout=0.01)
    with pytest.raises(DeliverTimeout):
        batcher.add_many([3, 4], timeout=0.01)
    assert batcher.shutdown().tally.unsent == 3
    assert late.value.receipt.outcome is Outcome.UNSENT
    assert stored(folder) == [1]
