"""Reads one file, slightly ahead of its deliveries.

1. A thread reads one chunk at a time, once part of the previous one is delivered. Memory is
   therefore bounded by two chunks per file. A chunk is bounded in rows and in bytes.
2. `take` changes state in one stretch, so that a cancelled fetch has delivered nothing.
3. Rows before damage are delivered before the damage is reported.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from ..._core.logs import for_log
from ..._core.runtime.threads import in_thread
from .errors import BrokenFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.clock import Signal
    from ..._core.source import Record
    from .chunks import RowChunk, RowReader
    from .places import End, Mark

AHEAD = 1_000
"""The most rows in a chunk."""


class FileReading:
    """The rows of one file from a start row on."""

    def __init__(
        self,
        open_file: Callable[[], RowReader],
        record: Callable[[int, object], Record],
        start: int,
        news: Signal,
        over: Signal,
    ) -> None:
        self._open_file = open_file
        self._record = record
        self._news = news
        self._over = over
        self._reader: RowReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[Record] = deque()
        self._last = 0
        """Number of rows in the last chunk."""
        self._is_idle = False
        """Whether a followed file had no more rows."""
        self._told = self.read_to = start
        self.marks: deque[Mark] = deque()
        """Marks of rows that were read, in order."""
        self.rows: int | None = None
        """The number of rows, once it is known."""
        self.end: End | None = None
        self.broken: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether all rows have been delivered."""
        has_ended = self.end is not None or self.broken is not None
        return has_ended and not self._waiting and self._told == self.read_to

    def fill(self) -> None:
        """Start to read the next chunk, if there is room for it. Does not suspend."""
        has_ended = self.end is not None or self.broken is not None
        if not has_ended and not self._is_idle and len(self._waiting) < max(1, self._last):
            self._task = self._task or asyncio.get_running_loop().create_task(self._read())

    def wake(self) -> None:
        """Check a followed file for more rows."""
        self._is_idle = False
        self.fill()

    async def _read(self) -> None:
        try:
            chunk, records = await in_thread(self._read_chunk)
        except BrokenFile as error:
            self.broken = str(error)
        except Exception as error:
            self.broken = for_log(error)
        else:
            self._take_in(chunk, records)
        finally:
            self._task = None
        self._news.fire()
        if self.is_over:
            self._over.fire()

    def _read_chunk(self) -> tuple[RowChunk, Sequence[Record]]:
        if self._reader is None:
            self._reader = self._open_file()
        chunk = self._reader.read(AHEAD)
        record = self._record
        return chunk, [record(row, value) for row, value in chunk.rows]

    def _take_in(self, chunk: RowChunk, records: Sequence[Record]) -> None:
        assert self._reader is not None  # a chunk was read with it
        self._is_idle = chunk.waits
        self._waiting.extend(records)
        self._last = len(records)
        self.read_to = chunk.next_row
        self.end, self.broken = chunk.end, chunk.broken
        is_at_end = self.end is not None or self._is_idle
        self.rows = self.read_to if is_at_end else self._reader.rows
        if chunk.mark is not None and chunk.rows:
            self.marks.append(chunk.mark)

    def take(self, most: int) -> tuple[list[Record], int] | None:
        """Take the next records and the offset they reach; `None` if nothing is new."""
        waiting = self._waiting
        records = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        reach = waiting[0].offset if waiting else self.read_to
        if not records and reach == self._told:
            return None
        self._told = reach
        if self.is_over:
            self._over.fire()
        return records, reach

    def mark_before(self, row: int) -> Mark | None:
        """Return the last mark at or before a row, and forget the earlier ones."""
        while len(self.marks) > 1 and self.marks[1].row <= row:
            self.marks.popleft()
        return self.marks[0] if self.marks and self.marks[0].row <= row else None

    async def close(self) -> None:
        """Close the file once the reading thread has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._reader is not None:
            await in_thread(self._reader.close)
