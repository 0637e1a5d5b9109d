"""The conformance suite of sinks with transactions.

Subclass `TransactionConformance` instead of `SinkConformance`, and implement `stored()`: without it
the suite cannot see what has been committed. Each test uses units of a new application.

White box: transactions of a batch.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import pytest

from sluicegate._core.batch import RowBatch
from sluicegate._core.errors import NonDeterministicReplay, TransactionLost, UnitRefused
from sluicegate._core.outcome import Outcome
from sluicegate._core.send import send
from sluicegate._core.sink import capabilities_of
from sluicegate._core.transaction import Counts, Unit, check_transactional, transaction
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate._core.clock import LoopClock
    from sluicegate._core.sink import Sink
    from sluicegate._core.transaction import Transaction

T = TypeVar("T")

ROUNDS = (0, 3, 34, 144)
"""Rounds of the loop before a transaction is cancelled."""


class TransactionConformance(SinkConformance[T]):
    """The suite of every sink, and of the promises of `transaction(sink, unit)`."""

    def unit(self) -> Unit:
        """Return a new unit, not yet committed."""
        return Unit(application=f"conformance-{uuid4().hex}", version=1, part=0, parts=2)

    async def holds(self, items: Sequence[T]) -> int:
        """Return how many of these items are stored; skip the test if that is not known."""
        stored = await self.stored()
        if stored is None:
            pytest.skip("stored() is not implemented: the suite cannot see what has been committed")
        return sum(item in stored for item in items)

    async def attempt(self, sink: Sink[T], unit: Unit | None, items: Sequence[T]) -> Transaction[T]:
        """Write these items in one attempt, and record their number."""
        async with transaction(sink, unit) as tx:
            assert await send(tx, RowBatch(items)) == {}
            tx.record(Counts(rows=len(items)))
        return tx

    async def test_it_says_that_it_has_transactions(self, real_clock: LoopClock) -> None:
        """Every layer of the stack supports transactions."""
        async with self.open_sink() as sink:
            check_transactional(sink)
            assert capabilities_of(sink).transactional

    async def test_writes_are_seen_with_the_commit(self, real_clock: LoopClock) -> None:
        """All become visible with the commit and none before, with and without a unit."""
        async with self.open_sink() as sink:
            for unit in (None, self.unit()):
                first, second = self.items(3), self.items(3)
                async with transaction(sink, unit) as tx:
                    assert tx.committed is None
                    assert await send(tx, RowBatch(first)) == {}
                    assert await send(tx, RowBatch(second)) == {}
                    tx.record(Counts(rows=6, delivered=6))
                    assert await self.holds([*first, *second]) == 0, (
                        "an item of a transaction is visible before the commit"
                    )
                assert await self.holds([*first, *second]) == 6
                assert tx.committed is not None
                assert tx.committed.counts == Counts(rows=6, delivered=6)

    async def test_an_exception_rolls_back(self, real_clock: LoopClock) -> None:
        """It propagates, no write stays, and the same unit may be attempted again."""
        async with self.open_sink() as sink:
            unit, items = self.unit(), self.items(4)
            with pytest.raises(LookupError):
                async with transaction(sink, unit) as tx:
                    assert await send(tx, RowBatch(items)) == {}
                    raise LookupError
            assert await self.holds(items) == 0
            await self.attempt(sink, unit, items)
            assert await self.holds(items) == 4

    async def test_the_batches_of_a_rolled_back_attempt_can_be_sent_again(
        self, real_clock: LoopClock
    ) -> None:
        """The same objects: they are unsettled again. After a commit nothing is sent twice."""
        async with self.open_sink() as sink:
            for unit in (None, self.unit()):
                items = self.items(4)
                batches = [RowBatch(items[:3]), RowBatch(items[3:])]
                for is_last in (False, False, True):
                    try:
                        async with transaction(sink, unit) as tx:
                            for batch in batches * 2:
                                assert await send(tx, batch) == {}
                            assert not batches[0].unsettled()
                            if not is_last:
                                raise LookupError
                    except LookupError:
                        assert [len(batch.unsettled()) for batch in batches] == [3, 1]
                assert [await self.copies(item) for item in items] == [1] * 4
                assert not any(batch.unsettled() for batch in batches)

    async def test_a_cancellation_leaves_all_or_nothing(self, real_clock: LoopClock) -> None:
        """This holds at any moment; the next attempt of the unit completes it once."""
        async with self.open_sink() as sink:
            for rounds in ROUNDS:
                unit, items = self.unit(), self.items(4)
                task = asyncio.get_running_loop().create_task(self.attempt(sink, unit, items))
                for _ in range(rounds):
                    await real_clock.sleep(0)
                task.cancel()
                ended, _ = await asyncio.wait([task], timeout=30.0)
                assert ended, "the transaction did not end within 30 s of its cancellation"
                await self.attempt(sink, unit, items)
                assert [await self.copies(item) for item in items] == [1] * 4, (
                    f"after a cancellation ({rounds} turns)"
                )

    async def test_a_committed_unit_is_not_written_again(self, real_clock: LoopClock) -> None:
        """Its second attempt detects the commit; the same items are duplicates, others fail."""
        async with self.open_sink() as sink:
            unit, items = self.unit(), self.items(3)
            await self.attempt(sink, unit, items)
            batch = RowBatch(items)
            async with transaction(sink, unit) as tx:
                assert tx.committed is not None
                assert tx.committed.counts.rows == 3
                assert await send(tx, batch) == {}
                tx.record(Counts(rows=3))
            assert batch.delivery.verdicts(range(3)) == {Outcome.DUPLICATE: 3}
            assert [await self.copies(item) for item in items] == [1] * 3
            with pytest.raises(NonDeterministicReplay):
                await self.attempt(sink, unit, self.items(4))

    async def test_two_attempts_at_once_have_one_effect(self, real_clock: LoopClock) -> None:
        """The second waits for the first; both succeed."""
        async with self.open_sink() as sink:
            unit, items = self.unit(), self.items(5)
            await asyncio.gather(*(self.attempt(sink, unit, items) for _ in range(2)))
            assert [await self.copies(item) for item in items] == [1] * 5

    async def test_other_parts_of_a_version_are_refused(self, real_clock: LoopClock) -> None:
        """Another number of parts or another rule is refused; the version's own parts are not."""
        async with self.open_sink() as sink:
            unit = self.unit()
            await self.attempt(sink, unit, self.items(1))
            for other in (
                replace(unit, parts=3),
                replace(unit, rule="another"),
                replace(unit, part=1, parts=3),
            ):
                items = self.items(1)
                with pytest.raises(UnitRefused):
                    await self.attempt(sink, other, items)
                assert await self.holds(items) == 0
            await self.attempt(sink, replace(unit, part=1), self.items(1))

    async def test_refused_items_are_refused_alone(self, real_clock: LoopClock) -> None:
        """If the sink refuses whole batches, the batch is refused instead; other writes stay."""
        before, good, after = self.items(2), self.items(2), self.items(2)
        bad = self._bad_items(2)
        async with self.open_sink() as sink:
            async with transaction(sink, self.unit()) as tx:
                assert await send(tx, RowBatch(before)) == {}
                errors = await send(tx, RowBatch([good[0], bad[0], bad[1], good[1]]))
                assert set(errors) in ({1, 2}, {0, 1, 2, 3}), (
                    f"errors for items {sorted(errors)} of which 1 and 2 are bad"
                )
                assert await send(tx, RowBatch(after)) == {}
            assert await self.holds([*before, *after]) == 4
            assert await self.holds(good) == 4 - len(errors)

    async def test_what_comes_after_the_end_is_not_written(self, real_clock: LoopClock) -> None:
        """A zombie that still holds the transaction gets `TransactionLost`."""
        async with self.open_sink() as sink:
            late = self.items(2)
            tx = await self.attempt(sink, None, self.items(1))
            errors = await send(tx, RowBatch(late))
            assert {type(error) for error in errors.values()} == {TransactionLost}
            assert await self.holds(late) == 0
