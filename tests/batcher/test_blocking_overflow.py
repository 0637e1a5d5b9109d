"""A `BlockingBatcher` whose ledger is full: producers wait, or items are refused or dropped."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from blocking_help import PATIENCE, Plain, full, waits

from sluicegate import AddTimeout, Batch, BlockingBatcher, ItemFailed, Limits, Outcome
from sluicegate.errors import ItemTooLarge, LedgerFull


def test_add_waits_for_room_and_its_timeout_leaves_nothing_behind() -> None:
    """batcher/B8: errors are raised in the calling thread."""
    sink = Plain(shut=True)
    with full(sink) as batcher:
        with pytest.raises(AddTimeout) as caught:
            batcher.add("late", timeout=0.01)
        assert caught.value.retry_after == 5.0
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(batcher.add, "patient")
            waits(batcher, 1)
            assert not batcher.try_add("newcomer"), "nobody overtakes"
            sink.gate.set()
            waiting.result(PATIENCE)
    assert sink.items == [0, 1, 2, 3, "patient"]
    assert batcher.report is not None
    assert batcher.report.tally.refused == 2


def test_a_full_ledger_can_refuse() -> None:
    """batcher/B10."""
    sink = Plain(shut=True)
    with full(sink, overflow="reject") as batcher:
        with pytest.raises(LedgerFull):
            batcher.add(4)
    assert sink.items == [0, 1, 2, 3]


def test_a_full_ledger_can_drop_the_newest() -> None:
    """B-T9: the old ones survive, each loss is counted, and receipts say so."""
    sink = Plain(shut=True)
    with full(sink, overflow="drop_newest") as batcher:
        batcher.add(4)
        assert not batcher.try_add(5)
        with pytest.raises(ItemFailed) as caught:
            batcher.submit(6).result(PATIENCE)
        assert caught.value.outcome is Outcome.DROPPED
        assert batcher.tally().dropped == 3
    assert sink.items == [0, 1, 2, 3]


def test_a_full_ledger_can_drop_the_oldest() -> None:
    """B-T9: the new ones survive; items in flight stay."""
    sink = Plain(shut=True)
    with full(sink, overflow="drop_oldest") as batcher:
        batcher.add(4)
        assert batcher.try_add(5)
        assert batcher.tally().dropped == 2
    assert sink.items == [0, 1, 4, 5]


def test_an_item_that_finds_no_older_one_to_replace_is_dropped_once() -> None:
    """All bytes of the ledger are in flight, so no item can be evicted."""
    release = threading.Event()

    def write(batch: Batch[bytes]) -> None:
        release.wait(10.0)

    limits = Limits(max_items=1, max_pending_items=4, max_pending_bytes=10)
    with BlockingBatcher[bytes](write, limits=limits, overflow="drop_oldest") as batcher:
        batcher.add(b"x" * 10)
        assert batcher.try_add(b"y")  # announced; the loop decides its outcome
        tally = batcher.tally()
        assert (tally.accepted, tally.dropped, tally.inside) == (2, 1, 1)
        release.set()
    assert batcher.report is not None
    assert (batcher.report.tally.accepted, batcher.report.tally.dropped) == (2, 1)


def test_an_item_whose_function_raises_in_the_loop_is_dropped_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its producer, for which the same function has worked, is told that it was accepted."""
    producer = threading.current_thread()

    def key(item: int) -> int:
        if item == 4 and threading.current_thread() is not producer:
            raise ValueError("no key in this thread")
        return item

    sink = Plain(shut=True)
    with full(sink, overflow="drop_oldest", key=key) as batcher:
        assert batcher.try_add(4)
        assert batcher.tally().dropped == 1
    assert sink.items == [0, 1, 2, 3]
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert "dropped, since it cannot be accepted: ValueError" in told[0]


@pytest.mark.parametrize(
    ("overflow", "answer", "dropped"), [("drop_newest", False, 2), ("drop_oldest", True, 0)]
)
def test_a_loop_that_does_not_keep_up_is_not_waited_for(
    overflow: Any, answer: bool, dropped: int
) -> None:
    """`try_add` may be called in a signal handler, or on an event loop: it neither waits nor
    accumulates work for the loop.
    """
    gate, called = threading.Event(), threading.Event()
    items: list[int] = []

    async def write(batch: Batch[int]) -> None:
        called.set()
        gate.wait(PATIENCE)
        items.extend(batch)

    limits = Limits(max_items=2, max_pending_items=4, max_delay=60.0)
    with BlockingBatcher(write, limits=limits, overflow=overflow) as batcher:
        batcher.add_many([-2, -1])
        assert called.wait(PATIENCE)
        answers = [batcher.try_add(item) for item in range(10)]
        assert answers[:4] == [True, True, answer, answer]
        assert answers[4:] == [False] * 6
        gate.set()
        tally = batcher.tally()
    assert (tally.dropped, tally.refused, tally.accepted) == (dropped, 6, 6)
    assert items == [-2, -1, *range(4 - dropped)], (
        "room that has come free meanwhile is used for what was promised a place"
    )


def test_bytes_are_bounded_too() -> None:
    """batcher/B6: measured in the adding thread."""
    sink = Plain(shut=True)
    limits = Limits(max_items=2, max_bytes=6, max_pending_bytes=12, max_delay=60.0)
    with BlockingBatcher(sink, limits=limits, oversize="reject") as batcher:
        batcher.add(b"123456")
        assert sink.called.wait(PATIENCE)
        batcher.add_many([b"12", b"34"])
        assert not batcher.try_add(b"345")
        with pytest.raises(ItemTooLarge):
            batcher.add(b"1234567")
        with pytest.raises(TypeError, match="size_of"):
            batcher.add("text")
        assert batcher.try_add(b"56")
        sink.gate.set()
    assert sink.batches == [(b"123456",), (b"12", b"34"), (b"56",)]
