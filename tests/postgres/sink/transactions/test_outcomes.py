"""Outcomes of items written in a transaction: they become final at its commit, not earlier."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import (
    Batch,
    Batcher,
    DeadLetter,
    ItemFailed,
    Limits,
    Outcome,
    PermanentError,
    RowBatch,
    UnknownOutcomeError,
    WriteResult,
    send,
    stack,
    transaction,
)
from sluicegate.errors import TransactionLost
from sluicegate.sinks import Isolate, MemorySink, Unit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate.sinks import Transaction
    from sluicegate.testing import FakeClock

UNIT = Unit(application="orders", version=1)


class _Picky(MemorySink[Any]):
    """Refuses a batch with a bad item."""

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[Any]]:
        async with super().transaction(unit) as within:
            keep = within.write

            async def write(batch: Batch[Any]) -> WriteResult | None:
                if "bad" in batch:
                    raise PermanentError("bad")
                return await keep(batch)

            within.write = write  # type: ignore[method-assign]
            yield within


class Ending(MemorySink[Any]):
    """A destination whose commits fail with these errors in turn; `None` is a success."""

    def __init__(self, *errors: Exception | None) -> None:
        super().__init__()
        self._errors = [*errors]
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[Any]]:
        async with super().transaction(unit) as within:
            yield within
            await self.may_commit.wait()
            if self._errors and (error := self._errors.pop(0)) is not None:
                raise error

    async def write_all(self, batch: Batch[Any]) -> None:
        """A user's own sink that writes each batch in a transaction."""
        async with transaction(self) as tx:
            assert await send(tx, batch) == {}


def outcomes(batch: Batch[Any]) -> list[str]:
    return [batch.delivery.verdict(index).value for index in range(len(batch))]


@pytest.mark.parametrize("unit", [None, UNIT])
async def test_a_batch_of_a_transaction_that_was_lost_is_sent_again(
    fake_clock: FakeClock, unit: Unit | None
) -> None:
    """As documented: start again, with all batches."""
    sink, batches = Ending(TransactionLost("gone"), None), [RowBatch("ab"), RowBatch("c")]
    for is_committed in (False, True):
        try:
            async with transaction(sink, unit) as tx:
                for batch in batches:
                    assert await send(tx, batch) == {}
        except TransactionLost:
            assert [outcomes(batch) for batch in batches] == [["unsent"] * 2, ["unsent"]]
        assert sink.items == (["a", "b", "c"] if is_committed else [])
    assert [outcomes(batch) for batch in batches] == [["delivered"] * 2, ["delivered"]]


async def test_what_was_settled_before_stays_settled(fake_clock: FakeClock) -> None:
    sink, batch = MemorySink[str](), RowBatch("abc")
    batch.settle([1], Outcome.DUPLICATE)
    with pytest.raises(LookupError):
        async with transaction(sink) as tx:
            await send(tx, batch)
            raise LookupError
    assert outcomes(batch) == ["unsent", "duplicate", "unsent"]
    assert await send(sink, batch) == {}
    assert sink.items == ["a", "c"]


async def test_a_commit_of_unknown_outcome_leaves_items_perhaps_applied(
    fake_clock: FakeClock,
) -> None:
    sink, batch = Ending(UnknownOutcomeError("no answer")), RowBatch("ab")
    with pytest.raises(UnknownOutcomeError):
        async with transaction(sink) as tx:
            await send(tx, batch)
    assert outcomes(batch) == ["unknown"] * 2
    assert batch.maybe_applied == {0, 1}


async def test_dead_letters_are_those_of_the_attempt_that_commits(fake_clock: FakeClock) -> None:
    """The item of a held letter is unsettled after a rollback and refused again."""
    letters = MemorySink[Any]()
    sink = stack(_Picky(), Isolate(), DeadLetter(letters))
    batch = RowBatch(["a", "bad"])
    with pytest.raises(LookupError):
        async with transaction(sink) as tx:
            assert await send(tx, batch) == {}
            assert outcomes(batch) == ["delivered", "dead_lettered"]
            raise LookupError
    assert outcomes(batch) == ["unsent", "unsent"]
    assert letters.items == []
    async with transaction(sink) as tx:
        assert await send(tx, batch) == {}
    assert outcomes(batch) == ["delivered", "dead_lettered"]
    assert [letter.item for letter in letters.items] == ["bad"]


async def test_a_replay_that_fails_leaves_duplicates(fake_clock: FakeClock) -> None:
    """The unit was committed earlier, however this attempt ends."""
    sink, batch = MemorySink[str](), RowBatch("ab")
    async with transaction(sink, UNIT) as tx:
        await send(tx, RowBatch("ab"))
    with pytest.raises(LookupError):
        async with transaction(sink, UNIT) as tx:
            await send(tx, batch)
            raise LookupError
    assert outcomes(batch) == ["duplicate"] * 2


async def test_items_of_a_batcher_have_no_outcome_before_the_commit(
    fake_clock: FakeClock,
) -> None:
    sink = Ending()
    sink.may_commit.clear()
    limits = Limits(max_items=2)
    async with Batcher[int](sink.write_all, limits=limits, clock=fake_clock) as batcher:
        receipts = [await batcher.submit(number) for number in range(2)]
        await fake_clock.advance(10.0)
        assert [receipt.outcome for receipt in receipts] == [None, None]
        assert batcher.tally().delivered == 0
        sink.may_commit.set()
        assert [await receipt for receipt in receipts] == [Outcome.DELIVERED] * 2
    assert sink.items == [0, 1]


@pytest.mark.parametrize("is_tried_again", [False, True])
async def test_a_commit_that_is_lost_delivers_no_item_of_a_batcher(
    fake_clock: FakeClock, is_tried_again: bool
) -> None:
    sink = Ending(TransactionLost("gone"), None)

    async def write(batch: Batch[int]) -> None:
        try:
            await sink.write_all(batch)
        except TransactionLost:
            if not is_tried_again:
                raise
            await sink.write_all(batch)

    limits = Limits(max_items=3)
    async with Batcher[int](write, limits=limits, clock=fake_clock) as batcher:
        receipts = [await batcher.submit(number) for number in range(3)]
        await batcher.shutdown()
        found = {receipt.outcome for receipt in receipts}
    assert found == ({Outcome.DELIVERED} if is_tried_again else {Outcome.UNSENT})
    assert sink.items == ([0, 1, 2] if is_tried_again else [])


async def test_a_cut_before_the_commit_leaves_items_unknown(fake_clock: FakeClock) -> None:
    """B14: the tally of a shutdown is exact; a later commit changes no outcome."""
    sink = Ending()
    sink.may_commit.clear()
    async with Batcher[int](
        sink.write_all, limits=Limits(max_items=2), clock=fake_clock
    ) as batcher:
        receipts = [await batcher.submit(number) for number in range(2)]
        await fake_clock.advance(0.0)
        report = await batcher.shutdown(deadline=1.0)
        assert [receipt.outcome for receipt in receipts] == [Outcome.UNKNOWN] * 2
    assert (report.tally.unknown, report.tally.delivered) == (2, 0)


async def test_items_of_a_batcher_inside_a_transaction_are_unknown(fake_clock: FakeClock) -> None:
    """I10, batcher/B14: the batcher cannot wait for the commit; otherwise it would lose the
    outcomes and close with items in flight forever.
    """
    sink = MemorySink[int]()
    async with transaction(sink) as tx:
        async with Batcher[int](tx, limits=Limits(max_items=2), clock=fake_clock) as batcher:
            receipts = [await batcher.submit(number) for number in range(2)]
            report = await batcher.shutdown()
        assert [receipt.outcome for receipt in receipts] == [Outcome.UNKNOWN] * 2
        with pytest.raises(ItemFailed, match="transaction has not ended"):
            await receipts[0]
    assert sink.items == [0, 1]
    assert (report.tally.unknown, batcher.tally().delivered) == (2, 0)
