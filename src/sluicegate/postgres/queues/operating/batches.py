"""Processes many rows in batches, each in its own transaction.

A cancelled call has processed complete batches, and a later call continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from .schema_access import SchemaAccess

BATCH = 1000
"""Default number of rows per statement."""
ALL = 2**62


class Batches:
    """Runs a statement until it finds fewer rows than its limit."""

    def __init__(
        self, access: SchemaAccess, size: int, on_batch: Callable[[int], object] | None
    ) -> None:
        self._access = access
        self._size = checks.count("batch", size)
        self._on_batch = on_batch

    async def run(self, query: str, *values: object, most: int = ALL) -> int:
        """Run the query, whose last parameter is the size and whose result is the number of rows.

        Returns the total number of rows, at most `most`.
        """
        done = 0
        while done < most:
            size = min(self._size, most - done)
            ((count,),) = await self._access.rows(query, *values, size)
            done += int(count)
            if count and self._on_batch is not None:
                self._on_batch(done)
            if count < size:
                break
        return done
