"""The stored files of a subscription, each with a permanent number.

1. Files are stored in *chapters* of at most 256. Each chapter is a subscription of the provider,
   with a slot for each file. Its name consists of the subscription's name and the chapter's number.
   The records of its files are in its selection, which never changes.
2. A file's partition is its slot plus the number of files in earlier chapters. New files are stored
   in new chapters, so that no number changes, whatever the order of the names.
3. If several processes enter files at once, the first one stores the chapter, and the others read
   it.
4. The metadata of a stored position begins with `=|` if the file is finished, or `-|`. The rest is
   that of the consumer.
5. A scan (`look_at`) compares the catalog with the folder. A file that is not finished has to exist,
   and so have all its directories. A finished file may be removed. As long as it exists, it must be
   as it was at its end.
6. A file that could not be read is tried again when its status in the file system changes. A source
   that ends does not try again; it reports the file at its end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..._core.errors import ConfigError
from ..._core.source import Position
from ..._core.subscriptions import SLOTS, SubscriptionStart, slot_lock
from .finding import Recorded, difference, form_of, record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ..._core.subscriptions import Move, SubscriptionState
    from .options import FileOptions


_FORM = "sluicegate files 1"
_FINISHED, _UNFINISHED = "=|", "-|"
_VANISHED = "it no longer exists, and was not read to its end"
_CHANGED = (
    "it was written to after it had been read to its end; the added rows are not read. Put them "
    "into a new file"
)


@dataclass(slots=True, eq=False)
class FileEntry:
    """A file of the subscription."""

    chapter: int
    slot: int
    number: int
    """The number of the partition."""
    recorded: Recorded
    stored: Position
    """The position that was last read, or stored by this process."""
    is_held: bool = False
    """Whether this process has a claim to it."""
    trouble: str | None = None
    """The reason why this process cannot read it."""
    seen: Any = None
    """Its status in the file system when it was last seen."""

    @property
    def path(self) -> str:
        """The relative path."""
        return self.recorded.path

    @property
    def position(self) -> Position:
        """The stored position, as the consumer sees it."""
        return consumer_position(self.stored)

    @property
    def is_finished(self) -> bool:
        """Whether all its rows are settled."""
        return self.stored.metadata.startswith(_FINISHED)

    def is_at(self, stored: Position) -> None:
        """Set the stored position."""
        self.stored = stored

    def hold(self, *, is_held: bool) -> None:
        """Record that a claim has begun or ended."""
        self.is_held = is_held

    def fail(self, reason: str) -> None:
        """Record that the file cannot be read."""
        self.trouble = reason

    def look(self, seen: object, trouble: str | None) -> None:
        """Record the result of a directory scan."""
        self.seen, self.trouble = seen, trouble


class FileCatalog:
    """Reads and extends the chapters of one subscription."""

    def __init__(self, name: str, state: SubscriptionState) -> None:
        self._name = name
        self._state = state
        self._chapters: list[list[FileEntry]] = []
        self.entries: dict[str, FileEntry] = {}
        """The entries by path, in the order of their numbers."""

    def _chapter(self, number: int) -> str:
        return f"{self._name}/{number}"

    def lock_of(self, entry: FileEntry) -> str:
        """The name of a file's lock."""
        return slot_lock(self._chapter(entry.chapter), entry.slot)

    async def load(self) -> None:
        """Read the chapters that are not known yet.

        Raises the errors of the state, and `ConfigError` for a subscription of another kind.
        """
        while await self._read(len(self._chapters)):
            pass

    async def _read(self, number: int) -> bool:
        """Read a chapter; return whether it exists."""
        found = await self._state.read(self._chapter(number))
        if found is None:
            return False
        if number == len(self._chapters):
            told = _records(self._chapter(number), found.selection)
            before = len(self.entries)
            chapter = [
                FileEntry(number, slot, before + slot, recorded, Position(0))
                for slot, recorded in enumerate(told)
            ]
            self._chapters.append(chapter)
            self.entries.update({entry.path: entry for entry in chapter})
        for slot, entry in enumerate(self._chapters[number]):
            if not entry.is_held:
                entry.is_at(found.positions[slot])
        return True

    async def enter(self, records: Sequence[Recorded]) -> None:
        """Store the files that are in no chapter yet, in this order."""
        while new := [each for each in records if each.path not in self.entries][:SLOTS]:
            text = json.dumps([_FORM, *new])
            start = SubscriptionStart(dict.fromkeys(range(len(new)), 0), selection=text)
            await self._state.initialize(self._chapter(len(self._chapters)), start)
            await self._read(len(self._chapters))

    async def refresh(self) -> None:
        """Read the positions of unfinished files that this process does not hold."""
        for number, chapter in enumerate(self._chapters):
            if any(not (entry.is_finished or entry.is_held) for entry in chapter):
                await self._read(number)

    async def read(self, entries: Iterable[FileEntry]) -> dict[FileEntry, Position]:
        """Read the stored positions of these files."""
        found: dict[FileEntry, Position] = {}
        for number, chapter in self._by_chapter(dict.fromkeys(entries)).items():
            now = await self._state.read(self._chapter(number))
            if now is None:
                raise ConfigError(
                    f"the subscription {self._name!r} no longer exists: its positions were "
                    "deleted while this process read its files"
                )
            found |= {entry: now.positions[entry.slot] for entry in chapter}
        return found

    async def store(self, moves: Mapping[FileEntry, Move]) -> list[FileEntry]:
        """Move positions that have not changed in the meantime; return the moved files."""
        moved: list[FileEntry] = []
        for number, chapter in self._by_chapter(moves).items():
            wanted = {entry.slot: moves[entry] for entry in chapter}
            done = await self._state.store(self._chapter(number), wanted)
            moved += [entry for entry in chapter if entry.slot in done]
        for entry in moved:
            entry.is_at(moves[entry].after)
        return moved

    @staticmethod
    def _by_chapter(entries: Iterable[FileEntry]) -> dict[int, list[FileEntry]]:
        found: dict[int, list[FileEntry]] = {}
        for entry in entries:
            found.setdefault(entry.chapter, []).append(entry)
        return found


def _records(chapter: str, selection: str) -> list[Recorded]:
    try:
        form, *told = json.loads(selection)
        if form != _FORM:
            raise ValueError(form)
        return [Recorded(*each) for each in told]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the subscription {chapter!r} is not of files: pass another subscription= or state="
        ) from error


def stored_position(position: Position, *, is_end: bool) -> Position:
    """The stored form of a consumer's position."""
    return Position(position.offset, f"{_FINISHED if is_end else _UNFINISHED}{position.metadata}")


def consumer_position(stored: Position) -> Position:
    """The consumer's part of a stored position. Raises `ValueError` for one of another kind of
    source.
    """
    if not stored.metadata:
        return stored
    for own in (_FINISHED, _UNFINISHED):
        if stored.metadata.startswith(own):
            return Position(stored.offset, stored.metadata[len(own) :])
    raise ValueError(
        f"the text {stored.metadata[:20]!r} of a position is not from a source of files"
    )


# -- scans -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class SeenFiles:
    """The results of one scan."""

    new: list[Recorded] = field(default_factory=list[Recorded])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Paths that could not be inspected, with reasons."""
    looks: dict[str, object] = field(default_factory=dict[str, object])
    """The status of known files that exist."""
    troubles: dict[str, str] = field(default_factory=dict[str, str])
    """Known files that cannot be read, with reasons."""


def look_at(options: FileOptions, root: Path, entries: Iterable[FileEntry]) -> SeenFiles:
    """Scan once. Raises `ConfigError` for a file of unknown format, and `MissingExtra`."""
    seen = SeenFiles()
    known = {entry.path: entry for entry in entries}
    found = options.files.find()
    seen.refused.update(found.refused)
    for path in found.paths:
        form_of(path, options.format)
        if path not in known:
            try:
                seen.new.append(record(root, path))
            except OSError as error:
                seen.refused[path] = error.strerror or str(error)
    for entry in known.values():
        if not entry.is_held:
            _look_at(options, root, entry, seen)
    return seen


def _look_at(options: FileOptions, root: Path, entry: FileEntry, seen: SeenFiles) -> None:
    try:
        status = (root / entry.path).stat()
    except FileNotFoundError:
        if not entry.is_finished:
            seen.troubles[entry.path] = _VANISHED
        return
    except OSError as error:
        seen.troubles[entry.path] = error.strerror or str(error)
        return
    look = seen.looks[entry.path] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if entry.is_finished:
        if difference(entry.recorded, status) is not None:
            seen.troubles[entry.path] = _CHANGED
    elif entry.trouble is not None and (options.ends or look == entry.seen):
        seen.troubles[entry.path] = entry.trouble
