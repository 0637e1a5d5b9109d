"""The files that this process holds: their locks, their claims, and the ends of both.

1. A file is locked, then its position is read, then its claim begins: whatever another process did
   before is seen.
2. A claim is given up in this order: the host ends what runs, its position is stored, the claim
   ends, the lock is freed. A loss ends the claim at once, and stores nothing.
3. A move of a position names the one that it starts from. One that is refused shows that another
   process has moved it: the claim is lost. After an attempt without an answer the position is read
   before the next move.
4. Locks that could not be kept for as long as a lease may last are lost, with their claims.
5. A file whose rows are all settled is finished: that is stored with its position, and its claim
   ends. So does that of a broken file when the rows before the damage are settled.
6. The end of the source is told by a fetch, and a consumer fetches from claims: at the end there is
   a claim even if every file is finished.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ..._core.say import say
from ..._core.source import Position, Record, TopicPartition
from ..._core.subscriptions import Move
from ..._core.told import for_log
from .places import FilePlace
from .reading import FileReading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..._core.source import SourceClaim
    from .catalog import FileCatalog, FileEntry
    from .parts import FileParts

logger = logging.getLogger("penstock.sources.files")

KEEPS = 3
"""Intervals without an answer after which locks are lost."""
UNLOCK_WITHIN = 2.0
"""Seconds for unlocking at the end; leases run out by themselves."""

_LOST = "%s: %s is lost (%s); what was not stored of it runs again"
_NOT_STORED = "%s: the last position of %s is not stored (%s); what it held runs again"
_NOT_UNLOCKED = "%s: files could not be unlocked (%s); their locks run out"
_FINISHED = "%s: %s is finished, with %d rows (%d of %d files)"


@dataclass(slots=True, eq=False)
class HeldFile:
    """A file with an open claim."""

    entry: FileEntry
    claim: SourceClaim
    reading: FileReading
    attempts: list[Position] = field(default_factory=list[Position])
    """What attempts without an answer may have stored."""

    def attempt(self, position: Position) -> Move:
        """Note an attempt to store a position of the consumer's."""
        reading = self.reading
        is_end = reading.end is not None and position.offset == reading.read_to
        mark = reading.mark_before(position.offset) or self.entry.place.mark
        place = FilePlace(position, None if is_end else mark, reading.end if is_end else None)
        self.attempts.append(place.stored())
        return Move(self.entry.stored, place.stored())

    @property
    def is_settled(self) -> bool:
        """Whether every row that can be delivered is, and is settled."""
        return self.reading.is_over and self.entry.stored.offset == self.reading.read_to


class FileHolder:
    """Locks and claims of one open source."""

    def __init__(self, parts: FileParts, catalog: FileCatalog) -> None:
        self._parts = parts
        self._name = parts.options.subscription
        self._catalog = catalog
        self._locks = parts.locks
        self._host = parts.host
        self._clock = parts.clock
        self._held: dict[FileEntry, HeldFile] = {}
        self._ending: set[FileEntry] = set()
        """Files whose locks are to be freed."""
        self._closing: list[FileReading] = []
        """Those of claims that have ended."""
        self._stand_in: SourceClaim | None = None
        self._kept_at = -math.inf
        self._turn = asyncio.Lock()

    @property
    def all(self) -> list[HeldFile]:
        """The held files."""
        return list(self._held.values())

    @property
    def kept_until(self) -> float:
        """When the locks may have run out, unless they are kept before."""
        every = None if self._locks is None else self._locks.keep_every
        return math.inf if every is None else self._kept_at + KEEPS * every

    def among(self, claims: Iterable[SourceClaim]) -> list[HeldFile]:
        """The files of those claims that have not ended, in order; none if the locks may have."""
        if self._clock.now() >= self.kept_until:
            return []
        by_claim = {held.claim: held for held in self._held.values()}
        return [held for claim in claims if (held := by_claim.get(claim)) is not None]

    # -- claims ------------------------------------------------------------------------------------

    async def claim(self, entries: Sequence[FileEntry], most: int) -> None:
        """Claim up to `most` of these files, in order, as far as they are free and unfinished."""
        async with self._turn:
            for entry in entries:
                if most > 0 and await self._claim(entry):
                    most -= 1

    async def _claim(self, entry: FileEntry) -> bool:
        if entry in self._ending:
            await self._unlock()  # it was lost just now, and locks are not reentrant
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
        place = entry.place
        partition = TopicPartition(self._name, entry.number)
        (claim,) = self._host.assigned({partition: place.position})
        self._held[entry] = HeldFile(entry, claim, self._reading(entry, place))
        self._ending.discard(entry)
        entry.hold(is_held=True)
        self._parts.news.fire()
        return True

    def _reading(self, entry: FileEntry, place: FilePlace) -> FileReading:
        recorded, start = entry.recorded, place.position.offset
        parts = self._parts
        open_file = partial(parts.options.open, parts.root, recorded, start, place.mark)
        headers = (("file", recorded.path.encode("utf-8", "surrogateescape")),)
        key_of, topic, number = parts.options.keys(recorded.path), self._name, entry.number
        time = recorded.modified // 1_000_000

        def record(row: int, value: object) -> Record:
            return Record(topic, number, row, key_of(value), value, headers, time)

        return FileReading(open_file, record, start, parts.news, parts.wake)

    def stand_in(self) -> None:
        """Hold a claim of no file, if there is no other: without one, nothing is fetched, and the
        end of the source would not be told.
        """
        if not self._held:
            first = next(iter(self._catalog.entries.values()), None)
            position = Position(0) if first is None else first.place.position
            partition = TopicPartition(self._name, 0 if first is None else first.number)
            (self._stand_in,) = self._host.assigned({partition: position})

    async def give_up(self, held: HeldFile, within: float) -> None:
        """Let what runs end, store the position, and free the file. An error is logged only."""
        try:
            positions = await self._host.revoked([held.claim], within)
            if positions:
                await self.commit(positions)
        except Exception as error:
            path = held.entry.path
            say(logger, logging.WARNING, _NOT_STORED, self._name, path, for_log(error))
        finally:
            self.end([held])

    def end(self, ended: Iterable[HeldFile]) -> None:
        """End the claims of these files, without a commit; their locks are freed later."""
        gone = [held for held in ended if self._held.get(held.entry) is held]
        for held in gone:
            del self._held[held.entry]
            held.entry.hold(is_held=False)
            self._ending.add(held.entry)
            self._closing.append(held.reading)
        if gone:
            self._host.ended([held.claim for held in gone])
            self._parts.wake.fire()

    def lose(self, lost: Iterable[HeldFile], reason: str) -> None:
        """End claims that may have another owner now."""
        for held in lost:
            if self._held.get(held.entry) is held:
                say(logger, logging.WARNING, _LOST, self._name, held.entry.path, reason)
                self.end([held])

    async def finish(self) -> None:
        """Note which files are broken, and end the claims of those of which everything is settled.

        Raises what the state raises.
        """
        for held in self.all:
            if held.reading.broken is not None:
                held.entry.fail(held.reading.broken)
        for held in [each for each in self.all if each.is_settled]:
            entry, reading = held.entry, held.reading
            if reading.end is not None and not entry.is_finished:
                await self.commit({held.claim: Position(reading.read_to)})
            if entry.is_finished or reading.broken is not None:
                await self._host.revoked([held.claim], 0.0)  # nothing of it runs any more
                self.end([held])

    # -- positions ---------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Store the positions of claims that have not ended; return those that are stored."""
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
        self.lose([each for each in held if each not in stored], "its stored position was moved")
        if any(each.is_settled for each in stored):
            self._parts.wake.fire()
        return [each.claim for each in stored if self._held.get(each.entry) is each]

    def _tell_finished(self, stored: Iterable[HeldFile]) -> None:
        every = self._catalog.entries.values()
        for each in stored:
            if each.entry.is_finished:
                done = sum(entry.is_finished for entry in every)
                told = (self._name, each.entry.path, each.entry.stored.offset, done, len(every))
                say(logger, logging.INFO, _FINISHED, *told)

    async def _resolve(self, held: Collection[HeldFile]) -> list[HeldFile]:
        """Find out what attempts without an answer have stored; return the files that others moved."""
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
        """Extend the locks; end the claims of those that are lost. Raises what the locks raise."""
        if self._locks is None or not self._held:
            return
        names = {self._catalog.lock_of(held.entry): held for held in self.all}
        asked_at = self._clock.now()
        kept = await self._locks.keep(list(names))
        self._kept_at = max(self._kept_at, asked_at)
        self.lose([held for name, held in names.items() if name not in kept], "its lock is")

    def lose_unkept(self) -> None:
        """End all claims if their locks may have run out."""
        if self._clock.now() >= self.kept_until:
            self.lose(self.all, "its lock could not be kept in time")

    async def tidy(self) -> None:
        """Close the files and free the locks of claims that have ended."""
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
        """End all claims without a commit, close the files and free what is locked."""
        if self._stand_in is not None:
            self._host.ended([self._stand_in])
        self.end(self.all)
        try:
            async with self._clock.timeout_at(self._clock.now() + UNLOCK_WITHIN):
                await self.tidy()
        except Exception as error:
            say(logger, logging.INFO, _NOT_UNLOCKED, self._name, for_log(error))
