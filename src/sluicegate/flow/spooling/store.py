"""The files of a spool, as its thread sees them: segments, in the order of their offsets.

1. The works that wait at the same moment share transactions, one for each file that they touch: a
   group commit. No transaction spans files.
2. A work on several files is applied to the later ones first. An extent is stored in the file of
   its first item, with whose settlement it is removed: until then its batch is repeated as a whole.
3. A segment is deleted when all of it is settled. The last file stays: its name has the next offset.
4. A process that only sends never opens the file to which another one appends; one that only writes
   opens no other.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..._core.errors import ConfigError
from ..._core.logs import log_safely
from .owner import Lock, turn
from .parked import ParkedFile
from .ranges import ranges_of
from .segment import (
    OPEN,
    RESCUED,
    Extent,
    Item,
    Segment,
    code_of,
    end_in,
    finish_rescue,
    first_in,
    rescue,
    sync_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from .segment import Encoded

logger = logging.getLogger("sluicegate.spool")
_TOLD = (
    "%s is damaged (%s), and was replaced by a copy of its readable items; unreadable offsets, which "
    "are lost unless they were sent: %s. The damaged file is kept as *.damaged beside it"
)
LOOKS_EVERY = 0.5
"""Interval in seconds between checks for files of another process."""
MOST_CONNECTED = 16
"""Maximum number of connections to files that are complete."""
MOST_FILES = 64
"""Complete files of another process from which on a file is filled before the next one begins."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@dataclass(slots=True, eq=False)
class Work:
    """What one caller has to store. `error` is set if it failed."""

    puts: Sequence[Encoded] = ()
    settles: Sequence[tuple[int, int]] = ()
    keeps: Extent | None = None
    drops: Extent | None = None
    seals: bool = False
    """Whether the file is sealed afterwards, so that another process sends its items."""
    first: int = -1
    """The offset of the first item put."""
    error: BaseException | None = None

    def begin(self, first: int) -> Iterator[tuple[Any, ...]]:
        """Give the items their offsets, from `first` on; return their rows."""
        self.first = first
        return ((offset, *put) for offset, put in enumerate(self.puts, first))

    def fail(self, error: BaseException) -> None:
        """Note the first error."""
        self.error = self.error or error

    def survive(self) -> None:
        """Clear a disk error, if nothing is lost by it."""
        if not (self.puts or self.keeps):
            self.error = None


@dataclass(slots=True)
class _Step:
    """The part of the works that one file gets."""

    works: list[Work] = field(default_factory=list["Work"])
    puts: list[tuple[Any, ...]] = field(default_factory=list[Any])
    settles: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    keeps: list[Extent] = field(default_factory=list[Extent])
    drops: list[Extent] = field(default_factory=list[Extent])
    syncs: bool = False
    """Whether an extent is removed from an earlier file, which must not outlast this settlement."""

    def put(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows of items."""
        self.puts += rows

    def sync_for(self, work: Work) -> None:
        """Make the settlement of this work durable."""
        self.syncs |= self.works[-1] is work


class Store:
    """The segments of one folder. Blocks; used by one thread at a time."""

    def __init__(
        self, folder: Path, *, writes: bool, sends: bool, durable: bool, segment_bytes: int
    ) -> None:
        self.folder = folder
        self.id = ""
        """The identity of the spool, the first part of the durable ids of its items."""
        self.writes = writes
        """Whether items are appended by this process."""
        self.sends = sends
        """Whether items are sent by this process."""
        self._durable = durable
        self._segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        """The open files, in order. The last one is appended to, in a process that writes."""
        self.parked = ParkedFile(folder)
        self._bytes_of_others = self._items_of_others = self._files_of_others = 0
        """Of the files that another process has open; settled items are not known."""
        self.lost = 0
        """Items in damaged files that could not be read."""
        self.oldest_at: int | None = None
        """When the first unsettled item was stored: milliseconds since the epoch."""
        self._oldest = -1
        """Its offset."""

    def open(self) -> None:
        """Open the files, and create the first one. Called in a `turn`."""
        self._identify()
        for copy in self.folder.glob(f"*{RESCUED}"):
            finish_rescue(copy.with_suffix(""))
        paths = self._paths()
        for at, path in enumerate(paths):
            if self.sends if end_in(path) is not None else self.writes:
                self._open(path, paths[at + 1] if at + 1 < len(paths) else None)
                self._rest()
        if self.writes:
            for segment in self.segments[:-1]:  # a crash between two files may leave it open
                if not segment.is_sealed:
                    segment.seal()
            if not self.segments or self.segments[-1].is_sealed:
                ends = [end_in(path) or first_in(path) for path in paths]
                self._append_file(max([0, *ends, *(each.end for each in self.segments)]))
        self.look_at_others()
        if self.sends:
            self.parked.count()
        self._look_at_oldest()

    def _identify(self) -> None:
        path = self.folder / "id"
        if not path.exists():
            new = path.with_suffix(".new")
            with new.open("w") as file:
                file.write(uuid4().hex)
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)
            sync_folder(self.folder)
        self.id = path.read_text()

    def _append_file(self, first: int) -> None:
        path = self.folder / f"{first:020d}{OPEN}"
        self.segments.append(Segment.create(path, self.id, first, durable=self._durable))

    def _open(self, path: Path, following: Path | None) -> None:
        try:
            self.segments.append(Segment(path, durable=self._durable))
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            end = end_in(path) or (0 if following is None else first_in(following))
            self._rescue(path, end, error)
            self.segments.append(Segment(path, durable=self._durable))

    def _rescue(self, path: Path, end: int, error: BaseException) -> None:
        lost, is_all = rescue(path, self.id, end, durable=self._durable)
        self.lost += lost.total
        told = [f"{first} to {end - 1}" for first, end in lost]
        told += [] if is_all else ["perhaps later ones"]
        log_safely(logger, logging.ERROR, _TOLD, path, error, ", ".join(told) or "none")

    def _paths(self) -> list[Path]:
        found = [path for path in self.folder.glob("*.db") if path.name[:20].isdigit()]
        return sorted(found)

    def look_at_others(self) -> None:
        """Measure the files that another process has open."""
        own = {segment.path for segment in self.segments}
        size = items = files = 0
        for path in self._paths():
            if path not in own:
                with suppress(FileNotFoundError):
                    size += path.stat().st_size
                    items += (end_in(path) or first_in(path)) - first_in(path)
                    files += 1
        self._files_of_others = files
        self._bytes_of_others, self._items_of_others = size, items

    def close(self) -> None:
        """Close the files; the rest of the last one is sealed, if another process sends it."""
        if self.writes and not self.sends:
            for segment in self.segments:
                if not segment.is_sealed and segment.unsettled:
                    with suppress(sqlite3.Error, OSError):  # its next owner seals it
                        segment.seal()
        for segment in self.segments:
            segment.close()
        self.segments.clear()
        self.parked.close()

    # -- state, which any thread may read ----------------------------------------------------------

    @property
    def bytes(self) -> int:
        """The size of the files."""
        return sum(segment.bytes for segment in tuple(self.segments)) + self._bytes_of_others

    @property
    def unsettled(self) -> int:
        """The number of items that are not settled. In a process that only writes, those of a file
        that is sealed count until all of them are.
        """
        own = sum(segment.unsettled for segment in tuple(self.segments))
        return own + self._items_of_others

    @property
    def sparse_files(self) -> int:
        """The number of full files of whose items at most a tenth is not settled."""
        files = [segment for segment in tuple(self.segments) if segment.is_sealed]
        return sum(0 < 10 * each.unsettled <= each.end - each.first for each in files)

    @property
    def start(self) -> int:
        """The offset of the first item that is not settled."""
        at = self.segments[0].first if self.segments else 0
        for segment in self.segments:
            at = segment.settled.end_of(max(at, segment.first))
            if at < segment.end:
                break
        return at

    @property
    def end(self) -> int:
        """The offset after the last item."""
        return self.segments[-1].end if self.segments else 0

    def extents(self) -> list[Extent]:
        """Return the batches whose writes have not ended, in the order of their first items."""
        found = [Extent(*each) for segment in self.segments for each in segment.extents.items()]
        return sorted(found, key=lambda extent: extent.offsets[0])

    # -- works -------------------------------------------------------------------------------------

    def apply(self, works: Sequence[Work]) -> None:
        """Store these works; each has its own `error` afterwards."""
        try:
            self._roll_over()
        except (sqlite3.Error, OSError) as error:
            for work in works:
                if work.puts:
                    work.fail(error)
        steps = self._steps([work for work in works if work.error is None])
        for segment in sorted(steps, key=lambda segment: -segment.first):
            step = steps[segment]
            if any(work.error is not None for work in step.works):
                first = next(work.error for work in step.works if work.error is not None)
                for work in step.works:
                    work.fail(first)
                continue
            try:
                _apply(segment, step)
            except (sqlite3.Error, OSError) as error:
                for work in step.works:
                    work.fail(error)
                if _is_damage(error):  # the next try finds a whole file
                    self._repair(segment, error)
                else:
                    with suppress(sqlite3.Error):
                        segment.roll_back()
                if code_of(error) == sqlite3.SQLITE_FULL:  # whole files can be deleted all the same
                    segment.note(step.settles)
                    for work in step.works:
                        work.survive()
        sealing = [work for work in works if work.seals]
        try:
            if sealing:
                self.look_at_others()
                self._roll_over(seals=self._files_of_others < MOST_FILES)
            self._remove_settled()
        except (sqlite3.Error, OSError) as error:
            for work in sealing:
                work.fail(error)
        self._look_at_oldest()
        self._rest()

    def _rest(self) -> None:
        """Close the connections that were not used for longest: a spool may have many files."""
        connected = [each for each in self.segments if each.is_sealed and each.is_connected]
        if len(connected) > MOST_CONNECTED:
            for segment in sorted(connected, key=lambda each: each.used)[:-MOST_CONNECTED]:
                segment.close()

    def _steps(self, works: Sequence[Work]) -> Mapping[Segment, _Step]:
        steps: dict[Segment, _Step] = {}

        def step_of(segment: Segment, work: Work) -> _Step:
            step = steps.setdefault(segment, _Step())
            if not step.works or step.works[-1] is not work:
                step.works.append(work)
            return step

        next_offset = self.end
        for work in works:
            if work.puts:
                step_of(self.segments[-1], work).put(work.begin(next_offset))
                next_offset += len(work.puts)
            for first, end in work.settles:
                for segment in self.segments:
                    low, high = max(first, segment.first), min(end, segment.end)
                    if low < high:
                        step_of(segment, work).settles.append((low, high))
            if work.keeps is not None and (home := self._home(work.keeps)) is not None:
                step_of(home, work).keeps.append(work.keeps)
            if work.drops is not None and (home := self._home(work.drops)) is not None:
                step_of(home, work).drops.append(work.drops)
                for segment, step in steps.items():
                    if segment is not home:
                        step.sync_for(work)
        return steps

    def _home(self, extent: Extent) -> Segment | None:
        first = min(extent.offsets)
        return next((each for each in self.segments if each.first <= first < each.end), None)

    def _roll_over(self, *, seals: bool = False) -> None:
        """Begin another file if the last one is large, or `seals`; not after an empty one."""
        if not self.writes:
            return
        last = self.segments[-1]
        is_due = seals or last.bytes >= self._segment_bytes
        if is_due and last.end > last.first and not last.is_sealed:
            last.seal()
        if last.is_sealed:  # now, or before a call that could not create the next one
            self._append_file(last.end)
            if not self.sends:
                self.segments.remove(last)
                self.look_at_others()

    def _remove_settled(self) -> None:
        for segment in [each for each in self.segments if each.is_sealed and not each.unsettled]:
            if segment is not self.segments[-1] or segment.path != self._paths()[-1]:
                segment.remove()
                self.segments.remove(segment)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, start: int, most: int, room: int) -> tuple[list[Item], int]:
        """Return up to `most` unsettled items from `start` on, of about `room` bytes, and the
        offset before which all were returned, now or earlier.
        """
        found: list[Item] = []
        at = start
        for segment in tuple(self.segments):
            at = max(at, segment.first)
            while at < segment.end:
                at = segment.settled.end_of(at)
                end = min(segment.end, segment.settled.next_after(at) or segment.end)
                if at >= end:
                    continue
                end = min(end, at + most - len(found))
                for item in self._items(segment, at, end):
                    found.append(item)
                    room -= len(item.value)
                    at = item.offset + 1
                    if room <= 0 or len(found) >= most:
                        return found, at
                at = max(at, end)
        return found, at

    def _items(self, segment: Segment, first: int, end: int) -> Iterable[Item]:
        try:
            return list(segment.items(first, end))
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._repair(segment, error)
            return list(segment.items(first, end))
        finally:
            self._rest()

    def _repair(self, segment: Segment, error: BaseException) -> None:
        segment.close()
        self._rescue(segment.path, segment.end, error)
        segment.open()

    def find(self, offsets: Sequence[int]) -> list[Item]:
        """Return the items with these offsets, in this order, without those that are gone."""
        found: dict[int, Item] = {}
        for first, end in ranges_of(sorted(offsets)):
            for segment in tuple(self.segments):
                low, high = max(first, segment.first), min(end, segment.end)
                if low < high:
                    found.update({item.offset: item for item in self._items(segment, low, high)})
        return [found[offset] for offset in offsets if offset in found]

    def any_unsettled(self, offsets: Sequence[int]) -> bool:
        """Return whether one of these items is not settled."""
        return any(
            segment.first <= offset < segment.end and offset not in segment.settled
            for segment in self.segments
            for offset in offsets
        )

    def _look_at_oldest(self) -> None:
        start = self.start
        if start >= self.end:
            self._oldest, self.oldest_at = -1, None
        elif start != self._oldest:
            self._oldest = start
            with suppress(sqlite3.Error):  # `read` repairs a damaged file
                self.oldest_at = next(
                    each.time_of(start) for each in self.segments if start < each.end
                )

    def adopt(self) -> bool:
        """Open the files that another process has sealed since the last call, or has left behind;
        return whether there are any.
        """
        own = {segment.path for segment in self.segments}
        with turn(self.folder):
            self._seal_left()
            new = [path for path in self._paths() if end_in(path) is not None and path not in own]
            for path in new:
                self._open(path, None)
                self._rest()
        self.segments.sort(key=lambda segment: segment.first)
        self._remove_settled()
        self.look_at_others()
        self._look_at_oldest()
        return bool(new)

    def _seal_left(self) -> None:
        """Seal the file of a writer that has ended, unless it is empty."""
        left = [path for path in self._paths() if end_in(path) is None]
        lock = Lock(self.folder, "writer")
        try:
            if left:
                lock.acquire()
        except ConfigError:  # the writer lives
            return
        try:
            for path in left:
                self._open(path, None)
                segment = self.segments.pop()
                if segment.unsettled:
                    segment.seal()
                segment.close()
        finally:
            lock.release()


def _is_damage(error: BaseException) -> bool:
    return code_of(error) in _DAMAGE


def _apply(segment: Segment, step: _Step) -> None:
    segment.begin(syncs=bool(step.puts or step.keeps or step.syncs))
    if step.puts:
        segment.append(step.puts)
    for extent in step.keeps:
        segment.keep_extent(extent)
    segment.settle(step.settles, again=step.syncs)
    for extent in step.drops:
        segment.drop_extent(extent.batch)
    segment.commit()
    if step.puts:
        segment.appended(step.puts[-1][0] + 1)
