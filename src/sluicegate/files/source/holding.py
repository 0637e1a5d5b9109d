"""The files that this process holds: their locks and claims, from beginning to end.

1. A file is locked, then its position is read, then its claim begins. The position therefore
   includes all earlier work of other processes.
2. A claim is released in this order: the host drains running messages, the position is stored, the
   claim ends, the lock is released. A loss ends the claim at once, and stores nothing.
3. A move of a position states the position that it starts from. If it is refused, another process
   has moved the position, and the claim is lost. After an attempt without an answer, the position
   is read before the next move.
4. Locks that were not extended within the longest possible lease are lost, with their claims.
5. A file whose rows are all settled is finished. This is stored with its position, and its claim
   ends. The claim of a damaged file ends as well once the rows before the damage are settled.
6. A fetch reports the end of the source, and a consumer fetches only if it has claims. At the end
   there is therefore a claim, even if every file is finished.
7. A row that cannot be decoded, or has no readable key, is an `UndecodableRecord`, and the file is
   not damaged.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ..._core.clock import CountedSignal, Signal
from ..._core.logs import for_log, log_safely
from ..._core.runtime.threads import in_thread
from ..._core.source import Position, Record, TopicPartition, UndecodableRecord
from ..._core.subscriptions import Move
from .catalog import stored_position
from .readers import BrokenFile, UndecodableRow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost, SourceClaim
    from ..._core.subscriptions import SubscriptionLocks
    from .catalog import FileCatalog, FileEntry
    from .options import FileOptions
    from .readers import RowChunk, RowReader


logger = logging.getLogger("sluicegate.files")

KEEPS = 3
"""Intervals without an answer after which locks are considered lost."""
UNLOCK_WITHIN = 2.0
"""Seconds for unlocking at the end. Remaining leases expire."""

_LOST = "%s: %s is lost (%s); its rows without a stored position run again"
_NOT_STORED = (
    "%s: the last position of %s is not stored (%s); the rows after the stored one run again"
)
_NOT_UNLOCKED = "%s: files could not be unlocked (%s); their locks expire by themselves"
_FINISHED = "%s: %s is finished, with %d rows (%d of %d files)"
AHEAD = 1_000
"""The most rows in a chunk."""


@dataclass(slots=True, eq=False)
class HeldFile:
    """A file with an open claim."""

    entry: FileEntry
    claim: SourceClaim
    reading: FileReading
    attempts: list[Position] = field(default_factory=list[Position])
    """The positions that attempts without an answer may have stored."""

    def attempt(self, position: Position) -> Move:
        """Register an attempt to store a position of the consumer; return the move."""
        is_end = self.reading.is_end and position.offset == self.reading.read_to
        stored = stored_position(position, is_end=is_end)
        self.attempts.append(stored)
        return Move(self.entry.stored, stored)

    @property
    def is_settled(self) -> bool:
        """Whether every deliverable row has been delivered and settled."""
        return self.reading.is_over and self.entry.stored.offset == self.reading.read_to


class FileHolder:
    """The locks and claims of one open source."""

    def __init__(
        self,
        options: FileOptions,
        root: Path,
        catalog: FileCatalog,
        *,
        locks: SubscriptionLocks | None,
        host: ClaimHost,
        clock: Clock,
    ) -> None:
        self._options = options
        self._root = root
        self._name = options.subscription
        self._catalog = catalog
        self._locks = locks
        self._host = host
        self._clock = clock
        self.news = Signal()
        """Fires when there are rows to deliver, or at the end."""
        self.wake = CountedSignal()
        """Fires when the tasks should begin their next round."""
        self._held: dict[FileEntry, HeldFile] = {}
        self._ending: set[FileEntry] = set()
        """Files whose locks are to be released."""
        self._closing: list[FileReading] = []
        """Readings of claims that have ended."""
        self._stand_in: SourceClaim | None = None
        self._kept_at = -math.inf
        self._turn = asyncio.Lock()

    @property
    def all(self) -> list[HeldFile]:
        """The held files."""
        return list(self._held.values())

    @property
    def kept_until(self) -> float:
        """The time at which the locks may have expired, unless they are extended before."""
        every = None if self._locks is None else self._locks.keep_every
        return math.inf if every is None else self._kept_at + KEEPS * every

    def among(self, claims: Iterable[SourceClaim]) -> list[HeldFile]:
        """The files of these claims that are still open, in order; none if locks may have expired."""
        if self._clock.now() >= self.kept_until:
            return []
        by_claim = {held.claim: held for held in self._held.values()}
        return [held for claim in claims if (held := by_claim.get(claim)) is not None]

    # -- claims ------------------------------------------------------------------------------------

    async def claim(self, entries: Sequence[FileEntry], most: int) -> None:
        """Claim up to `most` of these files, in order, if they are free and unfinished."""
        async with self._turn:
            for entry in entries:
                if most > 0 and await self._claim(entry):
                    most -= 1

    async def _claim(self, entry: FileEntry) -> bool:
        if entry in self._ending:
            await self._unlock()  # it has just been lost, and locks are not reentrant
        self._ending.add(entry)
        asked_at = self._clock.now()
        name = self._catalog.lock_of(entry)
        if self._locks is not None and name not in await self._locks.lock([name]):
            self._ending.discard(entry)
            return False
        entry.is_at((await self._catalog.read([entry]))[entry])
        if entry.is_finished:
            await self._unlock()
            return False
        if not self._held:
            self._kept_at = asked_at
        partition = TopicPartition(self._name, entry.number)
        (claim,) = self._host.assigned({partition: entry.position})
        self._held[entry] = HeldFile(entry, claim, self._reading(entry))
        self._ending.discard(entry)
        entry.hold(is_held=True)
        self.news.fire()
        return True

    def _reading(self, entry: FileEntry) -> FileReading:
        recorded, start = entry.recorded, entry.stored.offset
        options = self._options
        open_file = partial(options.open, self._root, recorded, start)
        headers = (("file", recorded.path.encode("utf-8", "surrogateescape")),)
        key_of, topic, number = options.keys(recorded.path), self._name, entry.number
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

        return FileReading(open_file, record, start, self.news, self.wake)

    def stand_in(self) -> None:
        """Hold a claim without a file if there is no other claim.

        Without a claim the consumer does not fetch, and would not see the end of the source.
        """
        if not self._held:
            first = next(iter(self._catalog.entries.values()), None)
            position = Position(0) if first is None else first.position
            partition = TopicPartition(self._name, 0 if first is None else first.number)
            (self._stand_in,) = self._host.assigned({partition: position})

    async def give_up(self, held: HeldFile, within: float) -> None:
        """Drain the claim, store the position, and release the file. Errors are only logged."""
        try:
            positions = await self._host.revoked([held.claim], within)
            if positions:
                await self.commit(positions)
        except Exception as error:
            path = held.entry.path
            log_safely(logger, logging.WARNING, _NOT_STORED, self._name, path, for_log(error))
        finally:
            self.end([held])

    def end(self, ended: Iterable[HeldFile]) -> None:
        """End the claims of these files without a commit; their locks are released later."""
        gone = [held for held in ended if self._held.get(held.entry) is held]
        for held in gone:
            del self._held[held.entry]
            held.entry.hold(is_held=False)
            self._ending.add(held.entry)
            self._closing.append(held.reading)
        if gone:
            self._host.ended([held.claim for held in gone])
            self.wake.fire()

    def lose(self, lost: Iterable[HeldFile], reason: str) -> None:
        """End claims of files that may have another owner now."""
        for held in lost:
            if self._held.get(held.entry) is held:
                log_safely(logger, logging.WARNING, _LOST, self._name, held.entry.path, reason)
                self.end([held])

    async def finish(self) -> None:
        """Register damaged files, and end the claims of files whose rows are all settled.

        Raises the errors of the state.
        """
        for held in self.all:
            if held.reading.broken is not None:
                held.entry.fail(held.reading.broken)
        for held in [each for each in self.all if each.is_settled]:
            entry, reading = held.entry, held.reading
            if reading.is_end and not entry.is_finished:
                await self.commit({held.claim: Position(reading.read_to)})
            if entry.is_finished or reading.broken is not None:
                await self._host.revoked([held.claim], 0.0)  # none of its messages is running
                self.end([held])

    # -- positions ---------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Store the positions of open claims; return the claims whose positions are stored."""
        async with self._turn:
            held = {
                each: positions[each.claim]
                for each in self._held.values()
                if each.claim in positions
            }
            refused = await self._resolve(held)
            moves = {each: each.attempt(at) for each, at in held.items() if each not in refused}
            wanted = {each.entry: move for each, move in moves.items()}
            done = await self._catalog.store(wanted) if wanted else []
            stored = [each for each in moves if each.entry in done]
            for each in stored:
                each.attempts.clear()
        self._tell_finished(stored)
        self.lose(
            [each for each in held if each not in stored],
            "its stored position was moved by another process",
        )
        if any(each.is_settled for each in stored):
            self.wake.fire()
        return [each.claim for each in stored if self._held.get(each.entry) is each]

    def _tell_finished(self, stored: Iterable[HeldFile]) -> None:
        every = self._catalog.entries.values()
        for each in stored:
            if each.entry.is_finished:
                done = sum(entry.is_finished for entry in every)
                told = (self._name, each.entry.path, each.entry.stored.offset, done, len(every))
                log_safely(logger, logging.INFO, _FINISHED, *told)

    async def _resolve(self, held: Collection[HeldFile]) -> list[HeldFile]:
        """Determine the results of attempts without a response; return files moved by others."""
        doubtful = {each.entry: each for each in held if each.attempts}
        if not doubtful:
            return []
        found = await self._catalog.read(doubtful)
        refused: list[HeldFile] = []
        for entry, each in doubtful.items():
            if found[entry] in (entry.stored, *each.attempts):
                entry.is_at(found[entry])
                each.attempts.clear()
            else:
                refused.append(each)
        return refused

    # -- locks -------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Extend the locks, and end the claims of lost locks. Raises the errors of the locks."""
        if self._locks is None or not self._held:
            return
        names = {self._catalog.lock_of(held.entry): held for held in self.all}
        asked_at = self._clock.now()
        kept = await self._locks.keep(list(names))
        self._kept_at = max(self._kept_at, asked_at)
        self.lose([held for name, held in names.items() if name not in kept], "its lock was lost")

    def lose_unkept(self) -> None:
        """End all claims if their locks may have expired."""
        if self._clock.now() >= self.kept_until:
            self.lose(self.all, "its lock could not be extended in time")

    async def tidy(self) -> None:
        """Close the files and release the locks of claims that have ended."""
        while self._closing:
            await self._closing.pop().close()
        async with self._turn:
            await self._unlock()

    async def _unlock(self) -> None:
        if ending := [entry for entry in self._ending if entry not in self._held]:
            if self._locks is not None:
                await self._locks.unlock([self._catalog.lock_of(entry) for entry in ending])
            self._ending.difference_update(ending)

    async def close(self) -> None:
        """End all claims without a commit, close the files and release the locks."""
        if self._stand_in is not None:
            self._host.ended([self._stand_in])
        self.end(self.all)
        try:
            async with self._clock.timeout_at(self._clock.now() + UNLOCK_WITHIN):
                await self.tidy()
        except Exception as error:
            log_safely(logger, logging.INFO, _NOT_UNLOCKED, self._name, for_log(error))


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
