"""Order per key: items that wait behind their key while it backs off, and at a flush, an overflow
or a shutdown.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from keyed_help import Destination, Gate, Item, items, key_of, limits, on_virtual_time

from sluicegate import Backoff, Batcher, FanOut, Outcome, Retry, TransientError, WriteResult, stack
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from sluicegate import Batch

# -- backing off -----------------------------------------------------------------------------------


def test_a_key_that_backs_off_holds_back_only_itself() -> None:
    """batcher/4a.10, consumer/C:O2: also with one worker, and the keys that shared its batch
    continue.
    """

    async def perform(sink: Destination, batch: Batch[Item]) -> WriteResult | None:
        bad = {
            index: TransientError("later")
            for index, item in enumerate(batch)
            if item.key == "a" and len(sink.batches) < 4
        }
        sink.apply(*(item for index, item in enumerate(batch) if index not in bad))
        return WriteResult.failed(batch, bad)

    sink = Destination(perform)

    async def main(clock: FakeClock) -> None:
        patient = stack(sink, Retry(backoff=Backoff(base=100.0, jitter="none")))
        async with Batcher(patient, key=key_of, limits=limits(workers=1), clock=clock) as batcher:
            await batcher.add_many(items("a", "b", "c"))
            await clock.run_until_idle()
            assert batcher.stats().backing_off_batches == 1
            await batcher.add_many([Item("a", 1), Item("b", 1), Item("c", 1)])
            await clock.advance(1.0)
            assert sink.applied == {"b": [0, 1], "c": [0, 1]}
            assert batcher.tally().backing_off == 1
            await batcher.add(Item("b", 2))
            await clock.advance(1.0)
            assert sink.applied["b"] == [0, 1, 2]
            await clock.advance(1000.0)
            assert sink.applied["a"] == [0, 1]

    on_virtual_time(main)
    assert not sink.broken


def test_a_branch_that_nobody_waits_for_keeps_the_order_too() -> None:
    """I4: an item with an outcome may still be in flight to a best-effort branch."""
    slow, fast = Gate(), Destination()

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            FanOut(fast, best_effort=[slow]), key=key_of, limits=limits(), clock=clock
        ) as batcher:
            await batcher.add(Item("a", 0))
            await clock.advance(1.0)
            await batcher.add(Item("a", 1))
            await clock.advance(1.0)
            assert len(slow.waiting) == 1
            slow.open()
            await clock.advance(1.0)
            slow.open()

    on_virtual_time(main)
    assert slow.applied["a"] == fast.applied["a"] == [0, 1]
    assert not slow.broken


def test_what_was_cut_off_keeps_its_key_until_its_write_has_ended() -> None:
    """I5: it may still take effect, so no other item of its key is written meanwhile; other keys
    are.
    """

    async def deaf(sink: Destination, batch: Batch[Item]) -> None:
        if len(sink.batches) == 1:
            until = asyncio.get_running_loop().time() + 50.0
            while (left := until - asyncio.get_running_loop().time()) > 0:
                try:
                    await asyncio.sleep(left)
                except asyncio.CancelledError:
                    continue
        sink.apply(*batch)

    sink = Destination(deaf)

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(flush_timeout=5.0), clock=clock
        ) as batcher:
            receipt = await batcher.submit(Item("a", 0))
            await clock.advance(1.0)
            await batcher.add_many([Item("a", 1), Item("b", 0)])
            await clock.advance(10.0)
            assert receipt.outcome is Outcome.UNKNOWN
            assert sink.applied == {"b": [0]}
            await clock.advance(100.0)
        assert sink.applied["a"] == [0, 1]

    on_virtual_time(main)
    assert not sink.broken


# -- flush, overflow, shutdown ---------------------------------------------------------------------


def test_a_flush_covers_what_waits_behind_its_keys_and_nothing_later() -> None:
    """batcher/4b.4, batcher/B55: generation by generation, without linger; later items linger."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(max_items=10, max_delay=60.0), clock=clock
        ) as batcher:
            await batcher.add_many(items("a", "a", "a", "b"))
            flush = asyncio.create_task(batcher.flush())
            await clock.run_until_idle()
            await batcher.add_many([Item("a", 3), Item("b", 1), Item("c", 0)])
            assert sink.waiting == [tuple(items("a", "b"))]
            for number in (1, 2):
                sink.open()
                await clock.run_until_idle()
                assert not flush.done()
                assert sink.waiting == [(Item("a", number),)]
            sink.open()
            await clock.run_until_idle()
            report = await flush
            assert report.complete
            assert report.outcomes == {Outcome.DELIVERED: 4}
            assert not sink.waiting
            await clock.advance(60.0)
            assert sink.waiting == [(Item("c", 0), Item("b", 1), Item("a", 3))]
            sink.open()

    on_virtual_time(main)
    assert sink.reasons == ["manual", "manual", "manual", "time"]


def test_a_flush_that_is_late_tells_how_many_remain() -> None:
    """batcher/4b.4."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(), clock=clock) as batcher:
            await batcher.add_many(items("a", "a", "b"))
            flush = asyncio.create_task(batcher.flush(timeout=1.0))
            await clock.run_until_idle()
            await batcher.add(Item("c", 0))
            await clock.advance(1.0)
            assert (await flush).remaining == 3
            await clock.run_until_idle()
            while sink.waiting:
                sink.open()
                await clock.advance(1.0)

    on_virtual_time(main)


def test_the_oldest_item_that_no_worker_has_taken_is_dropped_wherever_it_waits() -> None:
    """B-T9: in a lane, a sealed batch or the open one; the next item of its key takes its place."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        given = limits(max_items=2, workers=1, max_pending_items=5)
        async with Batcher(
            sink, key=key_of, limits=given, overflow="drop_oldest", clock=clock
        ) as batcher:
            await batcher.add_many(items("a", "b"))
            await clock.advance(0.0)
            await batcher.add(Item("a", 1))
            await clock.advance(0.1)
            await batcher.add(Item("c", 0))
            await batcher.add(Item("c", 1))
            dropped = [Item("a", 2), Item("c", 2), Item("d", 0)]
            for item in dropped:
                await clock.advance(0.1)
                await batcher.add(item)
            assert batcher.tally().dropped == 3
            await clock.run_until_idle()
            while sink.waiting:
                sink.open()
                await clock.advance(1.0)

    on_virtual_time(main)
    assert sink.applied == {"a": [0, 2], "b": [0], "c": [2], "d": [0]}
    assert not sink.broken


@pytest.mark.parametrize("prefix_safe", [False, True])
def test_what_waits_behind_its_key_takes_room(prefix_safe: bool) -> None:
    """batcher/I1: items of one key fill the ledger like any other items."""
    sink = Gate(prefix_safe=prefix_safe)

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(max_items=5, max_pending_items=40), clock=clock
        ) as batcher:
            await batcher.add_many([Item("k", number) for number in range(5)])
            await clock.advance(5.0)
            number = 5
            while number < 50 and batcher.try_add(Item("k", number)):
                number += 1
            assert (number, batcher.tally().accepted) == (40, 40)
            while sink.waiting:
                sink.open()
                await clock.advance(5.0)

    on_virtual_time(main)
    assert sink.applied["k"] == list(range(40))


def test_a_shutdown_writes_what_waits_behind_its_keys() -> None:
    """batcher/B12, batcher/4a.10: a shutdown cancels no accepted item before the deadline."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(), clock=clock) as batcher:
            await batcher.add_many(items("a", "a", "a", "b"))
            closing = asyncio.create_task(batcher.shutdown())
            await clock.run_until_idle()
            await clock.run_until_idle()
            while sink.waiting:
                sink.open()
                await clock.run_until_idle()
            report = await closing
            assert report.complete
            assert report.tally.delivered == 4
            assert report.seconds == 0.0

    on_virtual_time(main)
    assert sink.applied == {"a": [0, 1, 2], "b": [0]}
    assert set(sink.reasons) <= {"size", "shutdown"}


def test_what_comes_after_an_item_that_is_handed_back_is_handed_back_too() -> None:
    """I4: the last attempt of a stopping batcher fails, and no later item of the key overtakes the
    item; other keys continue.
    """

    async def perform(sink: Destination, batch: Batch[Item]) -> WriteResult | None:
        bad = {
            index: TransientError("later")
            for index, item in enumerate(batch)
            if item == Item("a", 0)
        }
        sink.apply(*(item for index, item in enumerate(batch) if index not in bad))
        return WriteResult.failed(batch, bad)

    sink = Destination(perform)

    async def main(clock: FakeClock) -> None:
        patient = stack(sink, Retry(backoff=Backoff(base=100.0, jitter="none")))
        async with Batcher(patient, key=key_of, limits=limits(), clock=clock) as batcher:
            await batcher.add_many(items("a", "b", "c"))
            await clock.advance(1.0)
            await batcher.add_many([Item("a", 1), Item("a", 2), Item("b", 1)])
            report = await batcher.shutdown()
        assert report.unsent == (Item("a", 0), Item("a", 1), Item("a", 2))
        assert sink.applied == {"b": [0, 1], "c": [0]}
        report.verify()

    on_virtual_time(main)
