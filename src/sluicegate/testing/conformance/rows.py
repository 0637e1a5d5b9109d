"""Tests of written and refused items."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from ..._core.batch import RowBatch
from ..._core.send import send
from ..._core.sink import WriteResult, capabilities_of
from .subject import SinkUnderTest

if TYPE_CHECKING:
    from ..._core.clock import LoopClock

T = TypeVar("T")


class RowTests(SinkUnderTest[T]):
    """Tests of written and refused items."""

    async def test_a_batch_is_written_in_order(self, real_clock: LoopClock) -> None:
        """Every item arrives once, in the batch's order."""
        items = self.items(7)
        async with self.open_sink() as sink:
            assert await send(sink, RowBatch(items)) == {}
        await self._all_there(items)

    async def test_the_answer_fits_the_batch(self, real_clock: LoopClock) -> None:
        """The result is `None` or a `WriteResult` of the batch's length, also for an empty batch."""
        async with self.open_sink() as sink:
            for size in (0, 1, 3):
                answer = cast("object", await sink.write(RowBatch(self.items(size))))
                assert answer is None or isinstance(answer, WriteResult), (
                    f"write returned {answer!r}; expected None or a WriteResult"
                )
                assert answer is None or answer.size == size, (
                    f"an answer for {answer.size} items to a batch of {size}"
                )

    async def test_a_batch_is_left_as_it_was(self, real_clock: LoopClock) -> None:
        """`write` changes neither the batch nor its items: the same batch may be sent again."""
        items = self.items(5)
        batch = RowBatch(items)
        before = (batch.items, batch.id, batch.write_key, tuple(map(repr, items)))
        async with self.open_sink() as sink:
            assert await send(sink, batch) == {}
            assert (batch.items, batch.id, batch.write_key, tuple(map(repr, batch))) == before

    async def test_parts_of_one_batch_are_written_each(self, real_clock: LoopClock) -> None:
        """Two picks of one batch are different writes, also with deduplication by `write_key`."""
        items = self.items(6)
        batch = RowBatch(items)
        async with self.open_sink() as sink:
            assert await send(sink, batch.pick([0, 2, 4])) == {}
            assert await send(sink, batch.pick([1, 3, 5])) == {}
        assert list(batch.unsettled()) == []
        await self._nothing_lost(items)

    async def test_a_refused_item_is_told_and_its_neighbours_are_told_truly(
        self, real_clock: LoopClock
    ) -> None:
        """No error is lost, and each is at the index of its item."""
        good, bad = self.items(3), self._bad_items(2)
        batch = RowBatch([good[0], bad[0], good[1], good[2], bad[1]])
        async with self.open_sink() as sink:
            errors = await send(sink, batch)
            assert {1, 4} <= set(errors), (
                f"the refused items 1 and 4 are not among the errors: {errors}"
            )
            assert set(errors) in ({1, 4}, {0, 1, 2, 3, 4}), (
                f"errors for items {sorted(errors)}; only 1 and 4, or all, make sense"
            )
            await self.check_truth(batch, errors)
            assert await send(sink, RowBatch(self.items(2))) == {}, (
                "after a refusal the sink no longer works"
            )

    async def test_a_batch_of_refused_items_fails(self, real_clock: LoopClock) -> None:
        """None of its items counts as delivered."""
        bad = self._bad_items(3)
        async with self.open_sink() as sink:
            errors = await send(sink, RowBatch(bad))
            assert set(errors) == {0, 1, 2}
            assert all(type(error) is not Exception for error in errors.values()), (
                "raise an error of a specific class"
            )

    async def test_key_prefix_safety_is_told_truly(self, real_clock: LoopClock) -> None:
        """If an item fails, no later item of its key in that write has taken effect."""
        async with self.open_sink() as sink:
            if not capabilities_of(sink).key_prefix_safe:
                pytest.skip("the sink does not promise it")
            (bad,) = self._bad_items(1)
            first, later = self.items(2)
            errors = await send(sink, RowBatch([first, bad, later], keys=["k", "k", "k"]))
            assert {1, 2} <= set(errors)
            assert await self.copies(later) in {None, 0}, (
                "a later item of the refused item's key took effect"
            )
