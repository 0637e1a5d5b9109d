"""The conformance suite of batchers: for a subclass, a wrapper or a factory with its own settings.

    class TestOurBatcher(BatcherConformance):
        def batcher(self, sink, **settings):
            return our_batcher(sink, **settings)

The settings are those of `Batcher`; additions of the factory must not change them. The tests run on
a fake clock.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import AddTimeout, ClosedError, ItemFailed, Limits, Outcome, PermanentError
from sluicegate.testing import BlockingSink, ScriptedSink, fail, ignore_cancel, partial, slow

if TYPE_CHECKING:
    from sluicegate import Batcher, Receipt
    from sluicegate.testing import FakeClock


class BatcherConformance(ABC):
    """The suite of every batcher. Name the subclass `Test...`, and implement `batcher`."""

    @abstractmethod
    def batcher(self, sink: Any, **settings: Any) -> Batcher[Any]:
        """Return a new batcher of `sink` with these settings, not yet entered."""

    async def test_full_batches_go_at_once(self, fake_clock: FakeClock) -> None:
        """Twice `max_items` items result in two writes, in order, sealed by size."""
        sink: ScriptedSink[int] = ScriptedSink()
        async with self.batcher(sink, limits=Limits(max_items=5, max_delay=60.0)) as batcher:
            for item in range(10):
                await batcher.add(item)
            await sink.wait_for_call(2)
            assert [(call.items, call.reason) for call in sink.calls] == [
                ((0, 1, 2, 3, 4), "size"),
                ((5, 6, 7, 8, 9), "size"),
            ]

    async def test_age_is_counted_from_the_first_item(self, fake_clock: FakeClock) -> None:
        """A batch is written at `max_delay`, not earlier; an empty batcher writes nothing."""
        sink: ScriptedSink[str] = ScriptedSink()
        async with self.batcher(sink, limits=Limits(max_items=5, max_delay=2.0)) as batcher:
            await fake_clock.sleep(5.0)
            await batcher.add("a")
            await fake_clock.sleep(1.9)
            await batcher.add("b")
            assert sink.calls == []
            await fake_clock.sleep(0.2)
            assert sink.trace == [(7.0, ("a", "b"), "time")]
            await fake_clock.sleep(20.0)
            assert len(sink.calls) == 1

    async def test_a_shutdown_writes_the_rest_and_ends(self, fake_clock: FakeClock) -> None:
        """The last batch has its own seal reason; later items are refused; concurrent calls join."""
        sink: ScriptedSink[int] = ScriptedSink()
        batcher = self.batcher(sink, limits=Limits(max_items=5, max_delay=60.0))
        async with batcher:
            await batcher.add_many(range(3))
            reports = await asyncio.gather(*(batcher.shutdown() for _ in range(10)))
            assert len({id(report) for report in reports}) == 1
            with pytest.raises(ClosedError):
                await batcher.add(9)
            assert batcher.try_add(9) is False
        assert sink.trace == [(0.0, (0, 1, 2), "shutdown")]
        reports[0].verify()

    async def test_a_shutdown_keeps_its_deadline(self, fake_clock: FakeClock) -> None:
        """It ends in time whatever the sink does; all items are counted; later events do nothing."""
        sink: ScriptedSink[int] = ScriptedSink(default=ignore_cancel(50.0))
        batcher = self.batcher(sink, limits=Limits(max_items=2, workers=1))
        async with batcher:
            await batcher.add_many(range(6))
            report = await batcher.shutdown(deadline=1.0)
            assert fake_clock.now() <= 1.0
            report.verify()
            assert (report.tally.unknown, set(report.unsent)) == (2, {2, 3, 4, 5})
        await fake_clock.sleep(100.0)
        assert batcher.tally() == report.tally

    async def test_a_full_ledger_holds_producers_back(self, fake_clock: FakeClock) -> None:
        """`add` waits at most its timeout; an item that timed out is never written; the bound
        holds.
        """
        sink: BlockingSink[int] = BlockingSink()
        async with self.batcher(sink, limits=Limits(max_items=1, max_pending_items=2)) as batcher:
            await batcher.add_many([1, 2])
            assert batcher.try_add(3) is False
            with pytest.raises(AddTimeout):
                await batcher.add(3, timeout=0.5)
            waiting = asyncio.get_running_loop().create_task(batcher.add(4))
            await fake_clock.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert batcher.tally().inside == 2
            sink.release()
        assert sink.applied == [1, 2]

    async def test_a_flush_is_a_fence(self, fake_clock: FakeClock) -> None:
        """Items accepted before the flush are written when it returns; the batcher stays open."""
        sink: ScriptedSink[int] = ScriptedSink(default=slow(1.0))
        async with self.batcher(sink, limits=Limits(max_items=10, max_delay=60.0)) as batcher:
            await batcher.add_many(range(3))
            assert await batcher.flush()
            assert sink.applied == [0, 1, 2]
            await batcher.add(3)
            assert not await batcher.flush(timeout=0.5)
            assert await batcher.flush()
        assert sink.applied == [0, 1, 2, 3]

    async def test_every_item_has_one_outcome(self, fake_clock: FakeClock) -> None:
        """Receipts report it, the tally always adds up, and a failure does not affect other items."""
        sink: ScriptedSink[int] = ScriptedSink(
            [partial({1: PermanentError("no")}), fail(PermanentError("all"))]
        )
        async with self.batcher(sink, limits=Limits(max_items=3)) as batcher:
            receipts: list[Receipt] = []
            for item in range(6):
                receipts.append(await batcher.submit(item))
                batcher.tally().verify()
            for index, receipt in enumerate(receipts):
                if index in {0, 2}:
                    assert await receipt is Outcome.DELIVERED
                else:
                    with pytest.raises(ItemFailed):
                        await receipt
            report = await batcher.shutdown()
        report.verify()
        assert (report.tally.delivered, report.tally.rejected) == (2, 4)

    async def test_one_worker_keeps_the_order(self, fake_clock: FakeClock) -> None:
        """It keeps the order of each producer's items, and so of all items of a single producer."""
        sink: ScriptedSink[tuple[int, int]] = ScriptedSink(default=slow(0.01))

        async def produce(producer: int, batcher: Batcher[Any]) -> None:
            for number in range(40):
                await batcher.add((producer, number))
                await fake_clock.sleep(0.001 * (producer + 1))

        async with self.batcher(sink, limits=Limits(max_items=7, max_delay=0.005)) as batcher:
            await asyncio.gather(*(produce(producer, batcher) for producer in range(3)))
        for producer in range(3):
            assert [number for who, number in sink.applied if who == producer] == list(range(40))

    async def test_a_producer_that_is_cancelled_hurts_nobody(self, fake_clock: FakeClock) -> None:
        """Neither the write of its item nor the items of other producers are affected."""
        sink: ScriptedSink[str] = ScriptedSink(default=slow(1.0))
        async with self.batcher(sink, limits=Limits(max_items=2)) as batcher:
            other = await batcher.submit("other")
            producer = asyncio.get_running_loop().create_task(batcher.deliver("mine"))
            await sink.wait_for_call()
            producer.cancel()
            assert await other is Outcome.DELIVERED
        assert sorted(sink.applied) == ["mine", "other"]

    async def test_batches_are_not_used_again(self, fake_clock: FakeClock) -> None:
        """A sink may keep them forever."""
        kept: list[Any] = []

        async def keep(batch: Any) -> None:
            kept.append(batch)

        async with self.batcher(keep, limits=Limits(max_items=2)) as batcher:
            await batcher.add_many(range(6))
        assert [tuple(batch) for batch in kept] == [(0, 1), (2, 3), (4, 5)]
