"""An open source of files: the files that are read, and the calls of the consumer.

1. At most `files_at_once` files are read at a time, in the order of their paths. Each is a claim,
   which begins at the file's stored position.
2. A file whose rows are all settled is finished. This is stored with its position, and its claim
   ends. The claim of a damaged file ends as well once the rows before the damage are settled.
3. A file that cannot be read is reported by name at the end, with `UnreadFiles`; the other files
   are read.
4. The source is over when every row was delivered; commits settle the delivered rows. `UnreadFiles`
   also waits until they are settled. A fetch reports the end, and a consumer fetches only if it has
   claims. At the end there is therefore a claim, even if every file is finished.
5. A row that cannot be decoded, or has no readable key, is an `UndecodableRecord`, and the file is
   not damaged.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK, CountedSignal, Signal, wait_until
from ..._core.logs import for_log, log_safely
from ..._core.runtime.threads import in_thread
from ..._core.source import Fetched, Position, Record, TopicPartition, UndecodableRecord
from .readers import BrokenFile, UndecodableRow, UnreadFiles, list_reasons
from .state import check_found

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from ..._core.source import ClaimHost, SourceClaim
    from .options import FileOptions
    from .readers import RowChunk, RowReader
    from .state import FileEntry, FileState


logger = logging.getLogger("sluicegate.files")

_FINISHED = "%s: %s is finished, with %d rows (%d of %d files)"
AHEAD = 1_000
"""The most rows in a chunk."""


@dataclass(slots=True, eq=False)
class HeldFile:
    """A file with an open claim."""

    entry: FileEntry
    claim: SourceClaim
    reading: FileReading

    def is_end(self, position: Position) -> bool:
        """Whether the file is finished at this position."""
        return self.reading.is_end and position.offset == self.reading.read_to

    @property
    def is_settled(self) -> bool:
        """Whether every deliverable row has been delivered and settled."""
        return self.reading.is_over and self.entry.position.offset == self.reading.read_to


class OpenFiles:
    """The files of one open source."""

    def __init__(self, options: FileOptions, root: Path, state: FileState, host: ClaimHost) -> None:
        self._options = options
        self._root = root
        self._state = state
        self._host = host
        self._entries: list[FileEntry] = []
        self._refused: dict[str, str] = {}
        """Files that could not be inspected, with reasons."""
        self._held: dict[SourceClaim, HeldFile] = {}
        self._stand_in: SourceClaim | None = None
        self._news = Signal()
        """Fires when there are rows to deliver, or at the end."""
        self._wake = CountedSignal()
        """Fires when a file may be finished."""
        self._turn = asyncio.Lock()
        self._is_over = False
        self._failure: Exception | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Read within the context; at exit, end the claims. Raises the errors of the scan."""
        options = self._options
        self._entries, self._refused = await in_thread(self._state.load, options, self._root)
        check_found(self._entries, self._refused, options, list_reasons(self._refused))
        self._claim()
        task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            claims = [*self._held] + ([] if self._stand_in is None else [self._stand_in])
            readings = [held.reading for held in self._held.values()]
            self._held.clear()
            self._host.ended(claims)
            for reading in readings:
                await reading.close()

    async def _run(self) -> None:
        """Finish files, and begin the next ones, until every row was delivered."""
        self._host.assigned({})  # without a file the member waits, and is ready
        try:
            while True:
                heard = self._wake.count
                await self._finish()
                self._claim()
                if self._is_exhausted():
                    break
                if self._wake.count == heard:
                    await wait_until(LOOP_CLOCK, math.inf, self._wake)
            await self._finish()  # files whose end was found during this round
            self._is_over = True
            self._begin_stand_in()
        except Exception as error:
            self._failure = error
        self._news.fire()

    def _is_exhausted(self) -> bool:
        """Whether every row was delivered; before an error is raised, also settled."""
        if self._unread() and self._held:
            return False
        return all(held.reading.is_over for held in self._held.values()) and not self._next()

    def _unread(self) -> dict[str, str]:
        troubles = {each.path: each.trouble for each in self._entries if each.trouble is not None}
        return {**self._refused, **troubles}

    def _next(self) -> list[FileEntry]:
        """The files that are still to be begun, in order."""
        held = {each.entry for each in self._held.values()}
        left = [
            each
            for each in self._entries
            if not each.is_finished and each.trouble is None and each not in held
        ]
        return sorted(left, key=lambda each: each.path)

    def _claim(self) -> None:
        for entry in self._next()[: self._options.files_at_once - len(self._held)]:
            partition = TopicPartition(self._options.subscription, entry.number)
            (claim,) = self._host.assigned({partition: entry.position})
            self._held[claim] = HeldFile(entry, claim, self._reading(entry))
            self._news.fire()

    def _reading(self, entry: FileEntry) -> FileReading:
        recorded, start = entry.recorded, entry.position.offset
        options = self._options
        open_file = partial(options.open, self._root, recorded, start)
        headers = (("file", recorded.path.encode("utf-8", "surrogateescape")),)
        key_of, topic, number = options.keys(recorded.path), options.subscription, entry.number
        time = recorded.modified // 1_000_000

        def record(row: int, value: object) -> Record:
            error: Exception | None = None
            key, has_key = None, True
            if isinstance(value, UndecodableRow):
                error, value = value
                has_key = options.key is None
            else:
                try:
                    key = key_of(value)
                except Exception as raised:
                    error, has_key = raised, False
            read = (topic, number, row, key, value, headers, time)
            if error is None:
                return Record(*read)
            return UndecodableRecord(*read, error=error, has_key=has_key)

        return FileReading(open_file, record, start, self._news, self._wake)

    def _begin_stand_in(self) -> None:
        """Hold a claim without a file if there is no other claim.

        Without a claim the consumer does not fetch, and would not see the end of the source.
        """
        if not self._held:
            first = self._entries[0]
            partition = TopicPartition(self._options.subscription, first.number)
            (self._stand_in,) = self._host.assigned({partition: first.position})

    async def _finish(self) -> None:
        """Register damaged files, and end the claims of files whose rows are all settled."""
        for held in [*self._held.values()]:
            entry, reading = held.entry, held.reading
            entry.fail(reading.broken)
            if not held.is_settled:
                continue
            if reading.is_end and not entry.is_finished:
                await self.commit({held.claim: Position(reading.read_to)})
            await self._host.revoked([held.claim], 0.0)  # none of its messages is running
            del self._held[held.claim]
            self._host.ended([held.claim])
            await reading.close()

    # -- the calls of the consumer -----------------------------------------------------------------

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched] | None:
        """Deliver rows of these claims; `None` at the end."""
        while True:
            if self._failure is not None:
                raise self._failure
            if found := self._deliver(claims, most):
                return found
            if self._is_over:
                if unread := self._unread():
                    raise UnreadFiles(unread)
                return None
            await wait_until(LOOP_CLOCK, math.inf, self._news)

    def _among(self, claims: Collection[SourceClaim]) -> list[HeldFile]:
        """The files of these claims that are still open, in order."""
        return [held for claim in claims if (held := self._held.get(claim)) is not None]

    def _deliver(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        found: list[Fetched] = []
        for held in self._among(claims):
            taken = held.reading.take(most) if most > 0 else None
            if taken is not None:
                found.append(Fetched(held.claim, *taken))
                most -= len(taken[0])
            held.reading.fill()
        return found

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Store the positions of open claims; return the claims whose positions are stored."""
        async with self._turn:
            held = self._among(positions)
            moves = [(each.entry, at := positions[each.claim], each.is_end(at)) for each in held]
            try:
                if moves:
                    await in_thread(self._store, moves)
            finally:  # a cancelled commit has stored them, too
                if any(each.is_settled for each in held):
                    self._wake.fire()
        return [each.claim for each in held if each.claim in self._held]

    def _store(self, moves: Sequence[tuple[FileEntry, Position, bool]]) -> None:
        """Store positions, and log the files that are finished with them.

        Runs in the thread of the write: a cancelled commit does not resume after it.
        """
        finishing = [entry for entry, _, is_end in moves if is_end and not entry.is_finished]
        self._state.store(moves)
        done = sum(entry.is_finished for entry in self._entries) - len(finishing)
        for number, entry in enumerate(finishing, done + 1):
            told = (entry.path, entry.position.offset, number, len(self._entries))
            log_safely(logger, logging.INFO, _FINISHED, self._options.subscription, *told)

    def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the numbers of rows that are known."""
        rows = {held.claim: held.reading.rows for held in self._among(claims)}
        return {claim: count for claim, count in rows.items() if count is not None}


# -- reading ahead ---------------------------------------------------------------------------------


class FileReading:
    """The rows of one file from a start row on, read slightly ahead of their deliveries.

    1. A thread reads one chunk at a time, once part of the previous one is delivered. Memory is
       therefore bounded by two chunks per file. A chunk is bounded in rows and in bytes.
    2. `take` changes state in one stretch, so that a cancelled fetch has delivered nothing.
    3. Rows before damage are delivered before the damage is reported.
    """

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
        self._told = self.read_to = start
        self.rows: int | None = None
        """The number of rows, once it is known."""
        self.is_end = False
        self.broken: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether all rows have been delivered."""
        has_ended = self.is_end or self.broken is not None
        return has_ended and not self._waiting and self._told == self.read_to

    def fill(self) -> None:
        """Start to read the next chunk, if there is room for it. Does not suspend."""
        has_ended = self.is_end or self.broken is not None
        if not has_ended and len(self._waiting) < max(1, self._last):
            self._task = self._task or asyncio.get_running_loop().create_task(self._read())

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
        self._waiting.extend(records)
        self._last = len(records)
        self.read_to = chunk.next_row
        self.is_end, self.broken = chunk.is_end, chunk.broken
        self.rows = self.read_to if self.is_end else self._reader.rows

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

    async def close(self) -> None:
        """Close the file once the reading thread has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._reader is not None:
            await in_thread(self._reader.close)
