"""Tests of writing columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from ..._core.arrow import ArrowBatch
from ..._core.batch import RowBatch
from ..._core.send import send
from ..._core.sink import WriteResult
from .subject import SinkUnderTest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._core.batch import Batch
    from ..._core.clock import LoopClock

T = TypeVar("T")


class ColumnTests(SinkUnderTest[T]):
    """Tests of columns, which must have the outcomes of rows."""

    async def test_columns_are_written_as_rows_are(self, real_clock: LoopClock) -> None:
        """Every row arrives once, in the batch's order."""
        items = self.items(7)
        async with self.open_sink() as sink:
            assert await send(sink, self._column_batch(items)) == {}
        await self._all_there(items)

    async def test_parts_of_columns_are_written_each(self, real_clock: LoopClock) -> None:
        """A pick of a batch contains only the picked rows."""
        items = self.items(6)
        batch = self._column_batch(items)
        async with self.open_sink() as sink:
            for part in ([0, 2, 4], [1, 3, 5]):
                assert await send(sink, batch.pick(part)) == {}
                rest = [
                    index
                    for index in range(6)
                    if index not in part and not batch.delivery.is_settled(index)
                ]
                for index in rest:
                    assert await self.copies(items[index]) in {None, 0}, (
                        f"row {index} was not in the part, and the destination has it"
                    )
        await self._all_there(items, in_order=False)

    async def test_a_refused_row_of_columns_is_told_by_its_index(
        self, real_clock: LoopClock
    ) -> None:
        """The error is that of a refused item, and the results of other rows are correct."""
        good, bad = self.items(3), self._bad_items(2)
        items = [good[0], bad[0], good[1], good[2], bad[1]]
        batch = self._column_batch(items)
        async with self.open_sink() as sink:
            errors = await send(sink, batch)
            assert set(errors) in ({1, 4}, {0, 1, 2, 3, 4}), (
                f"errors for rows {sorted(errors)}; only 1 and 4, or all, make sense"
            )
            by_rows = await send(sink, RowBatch([*self.items(1), *self._bad_items(1)]))
            assert type(errors[1]) is type(by_rows[1]), (
                f"{errors[1]!r} for a row of columns, and {by_rows[1]!r} for an item"
            )
            await self.check_truth(RowBatch(items), errors)

    async def test_columns_without_rows_are_no_error(self, real_clock: LoopClock) -> None:
        """A batch without rows writes nothing."""
        batch = self._column_batch(self.items(1))
        async with self.open_sink() as sink:
            answer = cast("object", await sink.write(batch.pick([])))
            assert answer is None or (isinstance(answer, WriteResult) and answer.size == 0)

    def _column_batch(self, items: Sequence[T]) -> Batch[Any]:
        columns = self.columns(items)
        if columns is None:
            pytest.skip("columns() is not implemented, and the items are not rows")
        return ArrowBatch(columns)
