"""The sink under test: its hooks, and helpers of the suites."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pytest

from ..._core.errors import UnknownOutcomeError
from ..._core.opening import opened
from ..._core.stacking import stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ..._core.batch import Batch
    from ..._core.sink import Sink, SinkLike

T = TypeVar("T")

_numbers = itertools.count(1)


class SinkUnderTest(ABC, Generic[T]):
    """The hooks for a subclass to implement, and helpers for the tests."""

    ordered = True
    """Whether `stored()` keeps the order in which items were written."""

    @abstractmethod
    def sink(self) -> SinkLike[T]:
        """Return a new sink, not yet opened, of the same destination in every call."""

    @abstractmethod
    def item(self, number: int) -> T:
        """Return an item that the destination accepts, different for every number."""

    def bad_item(self, number: int) -> T | None:
        """Return an item that the destination refuses permanently; `None` if it refuses none."""
        return None

    def columns(self, items: Sequence[T]) -> Any | None:
        """Convert items to a `pyarrow.RecordBatch`, one row each; `None` if that is not possible.

        By default, mappings are rows, with a column for each name in any of them.
        """
        if not items or not all(isinstance(item, Mapping) for item in items):
            return None
        pyarrow: Any = pytest.importorskip("pyarrow", reason="columns are made with pyarrow")
        rows = cast("Sequence[Mapping[str, Any]]", items)
        names = dict.fromkeys(name for row in rows for name in row)
        return pyarrow.record_batch({name: [row.get(name) for row in rows] for name in names})

    async def stored(self) -> Sequence[T] | None:
        """Return every stored item, equal to the sent one; `None` if not known."""
        return None

    def items(self, count: int) -> list[T]:
        """Return new items, never sent before."""
        return [self.item(next(_numbers)) for _ in range(count)]

    @asynccontextmanager
    async def open_sink(self) -> AsyncIterator[Sink[T]]:
        """Open a sink for the duration of the context."""
        sink = stack(self.sink())
        async with opened(sink):
            yield sink

    async def copies(self, item: T) -> int | None:
        """Return the number of stored copies of an item; `None` if not known."""
        stored = await self.stored()
        return None if stored is None else [*stored].count(item)

    async def check_truth(self, batch: Batch[T], errors: dict[int, BaseException]) -> None:
        """Check that delivered items are stored, and failed ones are not or are unknown."""
        stored = await self.stored()
        if stored is None:
            return
        for index, item in enumerate(batch):
            error = errors.get(index)
            if error is None:
                assert item in stored, (
                    f"item {index} was reported as delivered, but the destination does not have it"
                )
            elif not isinstance(error, UnknownOutcomeError):
                assert item not in stored, (
                    f"item {index} failed with {error!r}, but the destination has it; raise an "
                    "UnknownOutcomeError"
                )

    def _bad_items(self, count: int) -> list[T]:
        bad = [self.bad_item(next(_numbers)) for _ in range(count)]
        if any(item is None for item in bad):
            pytest.skip("bad_item() is not implemented: the destination accepts everything")
        return cast("list[T]", bad)

    async def _all_there(self, items: Sequence[T], *, in_order: bool = True) -> None:
        stored = await self.stored()
        if stored is not None:
            found = [item for item in stored if item in items]
            assert sorted(map(repr, found)) == sorted(map(repr, items))
            assert not (self.ordered and in_order) or found == [*items]

    async def _nothing_lost(self, items: Sequence[T]) -> None:
        stored = await self.stored()
        if stored is not None:
            missing = [item for item in items if item not in stored]
            assert not missing, f"called delivered, and the destination does not have it: {missing}"
