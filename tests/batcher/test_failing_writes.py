"""Writes that fail, hang or return nonsense: the outcomes of their items, and `on_failure`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import Deaf, Recording
from sluicegate import Batch, Batcher, Limits, Outcome, PermanentError, WriteResult
from sluicegate.errors import BatcherBroken
from sluicegate.testing import FakeClock


async def test_the_flush_timeout_ends_a_hung_write(fake_clock: FakeClock) -> None:
    """B-T32, batcher/B16: its items are unknown, and the next batch continues."""
    calls: list[int] = []

    async def write(batch: Batch[int]) -> None:
        calls.append(batch[0])
        if batch[0] == 0:
            await asyncio.Event().wait()

    async with Batcher(write, limits=Limits(max_items=1, flush_timeout=3.0)) as batcher:
        receipts = [await batcher.submit(i) for i in range(2)]
        assert await receipts[1] is Outcome.DELIVERED
        assert fake_clock.now() == 3.0
        assert receipts[0].outcome is Outcome.UNKNOWN
    assert calls == [0, 1]


async def test_a_deaf_write_keeps_its_slot_until_it_has_ended(fake_clock: FakeClock) -> None:
    """B-T58: its items resolve after the grace, but no second write starts beside it."""
    sink = Deaf(seconds=50.0)
    async with Batcher(sink, limits=Limits(max_items=1, flush_timeout=1.0)) as batcher:
        first = await batcher.submit("a")
        await batcher.add("b")
        with pytest.raises(Exception, match="unknown"):
            await first
        assert fake_clock.now() == pytest.approx(1.1)
        await fake_clock.advance(40.0)
        assert sink.calls == 1
        await fake_clock.advance(60.0)
        assert sink.calls == 2


@pytest.mark.parametrize("error", [ValueError("no"), type("Odd", (BaseException,), {})("odd")])
async def test_whatever_a_sink_raises_fails_its_batch_and_nothing_else(
    fake_clock: FakeClock, error: BaseException
) -> None:
    """B-T31, batcher/B48."""

    async def write(batch: Batch[int]) -> None:
        if batch[0] == 0:
            raise error

    async with Batcher(write, limits=Limits(max_items=1)) as batcher:
        await batcher.add_many(range(2))
    assert batcher.report is not None
    assert (batcher.report.tally.rejected, batcher.report.tally.delivered) == (1, 1)


@pytest.mark.parametrize("answer", [object(), 3, [None], True])
async def test_a_nonsense_answer_is_unknown_and_says_what_to_return(
    fake_clock: FakeClock, answer: Any
) -> None:
    """B-T44: no item counts as delivered."""

    async def write(batch: Batch[int]) -> Any:
        return answer

    async with Batcher(write) as batcher:
        receipt = await batcher.submit(1)
        with pytest.raises(Exception, match="expected None"):
            await receipt
    assert receipt.outcome is Outcome.UNKNOWN


async def test_crash_stops_everything_for_everyone(fake_clock: FakeClock) -> None:
    """B-T50: later adds fail fast, and shutdown returns."""

    async def write(batch: Batch[int]) -> None:
        raise ValueError("disk on fire")

    async with Batcher(write, limits=Limits(max_items=1), on_failure="crash") as batcher:
        receipts = [await batcher.submit(i) for i in range(3)]
        await asyncio.sleep(1.0)
        with pytest.raises(BatcherBroken, match="disk on fire"):
            await batcher.add(9)
        with pytest.raises(BatcherBroken):
            await batcher.flush()
        report = await batcher.shutdown()
        assert report.unsent == (1, 2)
        assert [receipt.outcome for receipt in receipts] == [
            Outcome.REJECTED,
            Outcome.UNSENT,
            Outcome.UNSENT,
        ]


async def test_a_failure_handler_gets_the_items_and_their_error(fake_clock: FakeClock) -> None:
    """B-T50 in part; a handler that raises breaks the batcher, with an error in the log, and loses
    nothing.
    """
    seen: list[tuple[list[int], str]] = []

    async def write(batch: Batch[int]) -> None:
        raise ValueError("no")

    def handler(items: list[int], error: BaseException) -> None:
        seen.append((items, str(error)))
        if items == [1]:
            raise RuntimeError("handler")

    async with Batcher(write, limits=Limits(max_items=1), on_failure=handler) as batcher:
        await batcher.add_many(range(3))
        await asyncio.sleep(1.0)
        with pytest.raises(BatcherBroken, match="handler"):
            await batcher.add(9)
        report = await batcher.shutdown()
    assert seen == [([0], "no"), ([1], "no")]
    assert report.unsent == (2,)
    report.verify()


async def test_a_flush_is_true_only_if_every_item_is_safe(fake_clock: FakeClock) -> None:
    """It is false after rejections and while items remain."""

    async def sink(batch: Batch[int]) -> WriteResult | None:
        if 2 in batch:
            raise PermanentError("no")
        return None

    async with Batcher(sink, limits=Limits(max_items=1), clock=fake_clock) as batcher:
        await batcher.add(1)
        report = await batcher.flush()
        assert report
        assert report.ok
        await batcher.add_many([1, 2])
        report = await batcher.flush()
        assert not report
        assert report.complete
        assert report.outcomes == {Outcome.DELIVERED: 1, Outcome.REJECTED: 1}
    slow = Batcher(Recording(seconds=5.0), clock=fake_clock)
    async with slow:
        await slow.add(1)
        assert not await slow.flush(timeout=1.0)
