"""The handler of all ways to consume a topic: it counts, and the last record ends the turn."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from ..stopwatch import Stopwatch

if TYPE_CHECKING:
    from ..stopwatch import Took

PATIENCE = 180.0
"""Maximum seconds of a turn."""


class Counter:
    """Counts records, and times them from the first of `last` records to the last one.

    Joining the group is not timed. A handler waits for at most `longest` seconds, by a random
    number with a fixed seed.
    """

    def __init__(self, last: int, longest: float = 0.0) -> None:
        self.handle = self._wait if longest else self._count
        self.last = last
        self._longest = longest
        self._draw = random.Random(2)
        self._ended = 0
        self._watch: Stopwatch | None = None
        self._took: Took | None = None
        self._finished = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Whether all records have been handled."""
        return self._ended >= self.last

    async def _count(self, _: object) -> None:
        """Handle a record without doing anything else."""
        if self._watch is None:
            self._watch = Stopwatch()
        self._ended += 1
        if self._ended == self.last:
            self._finish()

    async def _wait(self, _: object) -> None:
        """Handle a record by waiting."""
        if self._watch is None:
            self._watch = Stopwatch()
        await asyncio.sleep(self._draw.random() * self._longest)
        await self._count(_)

    def count(self, records: int) -> None:
        """Count records at once, for ways that handle batches or have no coroutines."""
        if self._watch is None:
            self._watch = Stopwatch()
        self._ended += records
        if self.is_finished and self._took is None:
            self._finish()

    def _finish(self) -> None:
        self._took = self.read()
        self._finished.set()

    async def wait_finished(self) -> None:
        """Suspend until the last record. Raises `TimeoutError` if it does not arrive."""
        async with asyncio.timeout(PATIENCE):
            await self._finished.wait()

    def read(self) -> Took:
        """Return the time so far. Raises `AssertionError` if records are missing."""
        if self._watch is None or not self.is_finished:
            raise AssertionError(f"{self._ended} of {self.last} records were handled")
        return self._watch.read()

    def read_last(self) -> Took:
        """Return the time until the last record, which `wait_finished` may return long after: a way
        that never suspends handles more records of its topic first.
        """
        if self._took is None:
            raise AssertionError(f"{self._ended} of {self.last} records were handled")
        return self._took
