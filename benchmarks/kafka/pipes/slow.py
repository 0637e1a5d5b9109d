"""A destination in memory that takes 10 ms for each write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluicegate import Capabilities

from .actions import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Batch

    from ...destination import Row

WRITE = 0.01
"""Seconds of a write."""


class SlowDestination:
    """A destination for rows of one key that counts rows and checks their order."""

    capabilities = Capabilities(key_prefix_safe=True)

    def __init__(self) -> None:
        self.rows = 0
        self._next = 0

    async def write(self, batch: Batch[Row]) -> None:
        await self.take(list(batch))

    async def take(self, rows: Sequence[Row]) -> None:
        """Store rows. Raises `AssertionError` unless they are the next ones, in order."""
        first, self._next = self._next, self._next + len(rows)
        await asyncio.sleep(WRITE)
        if [*map(number_of, rows)] != [*range(first, first + len(rows))]:
            raise AssertionError(f"the rows from {first} on came in another order")
        self.rows += len(rows)

    def check(self, count: int) -> None:
        """Raise `AssertionError` unless it has this number of rows."""
        if self.rows != count:
            raise AssertionError(f"{self.rows} of {count} rows arrived")
