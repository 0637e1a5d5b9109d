"""Receipts: one awaitable per item."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from helpers import Gated, Recording
from penstock import (
    Batch,
    Batcher,
    ItemFailed,
    Limits,
    Outcome,
    PermanentError,
    WriteResult,
    gather,
)

if TYPE_CHECKING:
    from penstock.testing import FakeClock


async def test_a_receipt_gives_the_items_outcome(fake_clock: FakeClock) -> None:
    """batcher/B54."""
    async with Batcher(Recording()) as batcher:
        receipt = await batcher.submit("a")
        assert not receipt.done
        assert await receipt is Outcome.DELIVERED
        assert await receipt is Outcome.DELIVERED
        assert await batcher.deliver("b") is Outcome.DELIVERED


async def test_each_await_of_a_failed_receipt_raises_an_error_of_its_own(
    fake_clock: FakeClock,
) -> None:
    """With the cause of that item."""

    def answer(batch: Batch[Any]) -> WriteResult:
        return WriteResult.failed(batch, {1: PermanentError("bad row")})

    async with Batcher(Recording(answer=answer)) as batcher:
        receipts = [await batcher.submit(i) for i in range(3)]
        assert await gather(receipts) == [Outcome.DELIVERED, Outcome.REJECTED, Outcome.DELIVERED]
        errors: list[ItemFailed] = []
        for _ in range(2):
            with pytest.raises(ItemFailed, match="bad row") as caught:
                await receipts[1]
            errors.append(caught.value)
        assert errors[0] is not errors[1]
        assert isinstance(errors[0].__cause__, PermanentError)


async def test_details_reach_the_receipt(fake_clock: FakeClock) -> None:
    """design 3.2: a returned row, an offset, an id."""

    def answer(batch: Batch[Any]) -> WriteResult:
        return WriteResult.from_outcomes(
            batch, [None, Outcome.DUPLICATE], details={0: "id-7", 1: "id-8"}
        )

    async with Batcher(Recording(answer=answer)) as batcher:
        first, second = await batcher.submit("a"), await batcher.submit("b")
        assert [await first, await second] == [Outcome.DELIVERED, Outcome.DUPLICATE]
        assert (first.detail, second.detail) == ("id-7", "id-8")


async def test_cancelling_one_waiter_touches_nobody_else(fake_clock: FakeClock) -> None:
    """A receipt is not a future."""
    sink = Gated()
    async with Batcher(sink, limits=Limits(max_items=1)) as batcher:
        receipt = await batcher.submit("a")

        async def wait() -> Outcome:
            return await receipt

        first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
        await fake_clock.run_until_idle()
        first.cancel()
        sink.gate.set()
        assert await second is Outcome.DELIVERED
        assert first.cancelled()


async def test_a_cancelled_deliver_leaves_the_item_on_its_way(fake_clock: FakeClock) -> None:
    """B-T32: a producer's cancellation never cancels a write that contains other items."""
    sink = Gated()
    async with Batcher(sink, limits=Limits(max_items=2)) as batcher:
        first = asyncio.create_task(batcher.deliver("a"))
        second = asyncio.create_task(batcher.deliver("b"))
        await fake_clock.run_until_idle()
        assert sink.calls == 1
        first.cancel()
        sink.gate.set()
        assert await second is Outcome.DELIVERED
    assert sink.items == ["a", "b"]


async def test_receipts_of_items_that_were_never_sent_say_so(fake_clock: FakeClock) -> None:
    """B-T35, for shutdowns: every receipt resolves."""
    sink = Gated()
    async with Batcher(sink, limits=Limits(max_items=1)) as batcher:
        receipts = [await batcher.submit(i) for i in range(3)]
        await fake_clock.run_until_idle()
        report = await batcher.shutdown(deadline=1.0)
        assert await gather(receipts) == [Outcome.UNKNOWN, Outcome.UNSENT, Outcome.UNSENT]
        assert report.unsent == (1, 2)
        assert report.unknown == (0,)
        with pytest.raises(Exception, match="INCOMPLETE"):
            report.raise_if_incomplete()
