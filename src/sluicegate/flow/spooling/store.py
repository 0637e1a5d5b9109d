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
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from ..._core.logs import log_safely
from .parked import ParkedFile
from .ranges import ranges_of
from .segment import OPEN, Extent, Item, Segment, end_in, first_in, rescue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger("sluicegate.spool")
_TOLD = (
    "%s is damaged (%s): %d of its items could not be read and are lost%s; the others are kept in "
    "%s, and the damaged file stays beside it"
)
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Encoded(NamedTuple):
    """An item to be stored."""

    at: int
    form: int
    value: bytes
    crc: int


@dataclass(slots=True, eq=False)
class Work:
    """What one caller has to store. `error` is set if it failed."""

    puts: Sequence[Encoded] = ()
    settles: Sequence[tuple[int, int]] = ()
    keeps: Extent | None = None
    drops: Extent | None = None
    first: int = -1
    """The offset of the first item put."""
    error: BaseException | None = None


@dataclass(slots=True)
class _Step:
    """The part of the works that one file gets."""

    works: list[Work] = field(default_factory=list["Work"])
    puts: list[tuple[Any, ...]] = field(default_factory=list[Any])
    settles: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    keeps: list[Extent] = field(default_factory=list[Extent])
    drops: list[Extent] = field(default_factory=list[Extent])


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
        self._sends = sends
        self._durable = durable
        self._segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        """The open files, in order. The last one is appended to, in a process that writes."""
        self.parked = ParkedFile(folder)
        self._left_to_others = 0
        """The bytes of files that another process has open."""
        self.lost = 0
        """Items in damaged files that could not be read."""

    def open(self) -> None:
        """Open the files, and create the first one."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths = self._paths()
        for at, path in enumerate(paths):
            if self._sends if end_in(path) is not None else self.writes:
                self._open(path, paths[at + 1] if at + 1 < len(paths) else None)
        self._look_at_others()
        if self.writes and not (self.segments and not self.segments[-1].is_sealed):
            first = max((end_in(path) or 0 for path in paths), default=0)
            first = max(first, self.segments[-1].end if self.segments else 0)
            self._append_file(first)
        if self.segments:
            self.id = self.segments[-1].spool

    def _append_file(self, first: int) -> None:
        spool = self.id or (self.segments[-1].spool if self.segments else uuid4().hex)
        self.segments.append(Segment.create(self.folder, spool, first, durable=self._durable))

    def _open(self, path: Path, following: Path | None) -> None:
        is_new = path.stat().st_size == 0 and not path.with_name(f"{path.name}-wal").exists()
        if is_new and path.name.endswith(OPEN):  # its creation was interrupted
            path.unlink()
            return
        try:
            self.segments.append(Segment(path, durable=self._durable))
        except sqlite3.DatabaseError as error:
            if not _is_damage(error) and path.stat().st_size:
                raise
            end = end_in(path) or (0 if following is None else first_in(following))
            self.segments.append(self._rescued(path, end, error))

    def _rescued(self, path: Path, end: int, error: BaseException) -> Segment:
        spool = self.id or next((each.spool for each in self.segments), uuid4().hex)
        made, lost = rescue(path, spool, end, durable=self._durable)
        self.lost += lost.total
        told = ", ".join(f"{first} to {end - 1}" for first, end in lost)
        which = f" (offsets {told})" if told else ""
        log_safely(logger, logging.ERROR, _TOLD, path, error, lost.total, which, made.path)
        return made

    def _paths(self) -> list[Path]:
        found = [path for path in self.folder.glob("*.db") if path.name[:20].isdigit()]
        return sorted(found)

    def _look_at_others(self) -> None:
        own = {segment.path for segment in self.segments}
        self._left_to_others = 0
        for path in self._paths():
            if path not in own:
                with suppress(FileNotFoundError):
                    self._left_to_others += path.stat().st_size

    def close(self) -> None:
        """Close the files."""
        for segment in self.segments:
            segment.close()
        self.segments.clear()
        self.parked.close()

    # -- state, which any thread may read ----------------------------------------------------------

    @property
    def bytes(self) -> int:
        """The size of the files."""
        return sum(segment.bytes for segment in tuple(self.segments)) + self._left_to_others

    @property
    def unsettled(self) -> int:
        """The number of items that are not settled, in the files of this process."""
        return sum(segment.unsettled for segment in tuple(self.segments))

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
            steps = self._steps(works)
        except (sqlite3.Error, OSError) as error:
            for work in works:
                work.error = error
            return
        for segment in sorted(steps, key=lambda segment: -segment.first):
            step = steps[segment]
            if any(work.error is not None for work in step.works):
                first = next(work.error for work in step.works if work.error is not None)
                for work in step.works:
                    work.error = work.error or first
                continue
            try:
                _apply(segment, step)
            except (sqlite3.Error, OSError) as error:
                for work in step.works:
                    work.error = error
                if _is_damage(error):  # the next try finds a whole file
                    self._replace(segment, error)
                else:
                    with suppress(sqlite3.Error):
                        segment.roll_back()
        self._remove_settled()

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
                work.first = next_offset
                step = step_of(self.segments[-1], work)
                step.puts += [(offset, *put) for offset, put in enumerate(work.puts, next_offset)]
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
        return steps

    def _home(self, extent: Extent) -> Segment | None:
        first = min(extent.offsets)
        return next((each for each in self.segments if each.first <= first < each.end), None)

    def _roll_over(self) -> None:
        if self.writes and self.segments[-1].bytes >= self._segment_bytes:
            self.seal()

    def seal(self) -> None:
        """Begin another file, unless the last one is empty."""
        last = self.segments[-1]
        if last.end == last.first:
            return
        last.seal(reopens=self._sends)
        if not self._sends:
            self.segments.pop()
            self._look_at_others()
        self._append_file(last.end)

    def _remove_settled(self) -> None:
        last = self.segments[-1:]
        for segment in [each for each in self.segments if not each.unsettled]:
            if segment.is_sealed and segment not in last:
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
                for item in self._items(segment, at, min(end, at + most - len(found))):
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
            made = self._replace(segment, error)
            return [item for item in made.items(first, end) if item.offset not in made.settled]

    def _replace(self, segment: Segment, error: BaseException) -> Segment:
        segment.close()
        made = self._rescued(segment.path, segment.end, error)
        self.segments[self.segments.index(segment)] = made
        return made

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

    def oldest_at(self) -> int | None:
        """Return when the first unsettled item was stored, in milliseconds since the epoch."""
        found, _ = self.read(self.start, 1, 1)
        return found[0].at if found else None

    def adopt(self) -> None:
        """Open the files that another process has sealed since the last call."""
        own = {segment.path for segment in self.segments}
        for path in self._paths():
            if end_in(path) is not None and path not in own:
                self._open(path, None)
        self.segments.sort(key=lambda segment: segment.first)
        if self.segments and not self.id:
            self.id = self.segments[-1].spool
        self._look_at_others()


def _is_damage(error: BaseException) -> bool:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _DAMAGE


def _apply(segment: Segment, step: _Step) -> None:
    segment.begin(syncs=bool(step.puts or step.keeps))
    if step.puts:
        segment.append(step.puts)
    for extent in step.keeps:
        segment.keep_extent(extent)
    segment.settle(step.settles)
    for extent in step.drops:
        segment.drop_extent(extent.batch)
    segment.commit()
    if step.puts:
        segment.end = step.puts[-1][0] + 1
