"""What a disk may have after a power cut, computed from a record of `recorder.c`.

1. What was synced is there: the content of a file by a sync of the file, names by one of the folder.
2. Any part of the rest may be there. Later writes may have arrived without earlier ones, and a write
   is torn at sectors. Names arrive in order, as with a journal, or in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

SECTOR = 512


class Record(NamedTuple):
    """An operation; see `recorder.c`."""

    kind: str
    inode: int
    offset: int
    data: bytes


def records(path: Path) -> Iterator[Record]:
    """Yield the records of a file."""
    content, at = path.read_bytes(), 0
    while at < len(content):
        end = content.index(b"\n", at)
        kind, inode, offset, size = content[at:end].split()
        at = end + 1 + int(size)
        yield Record(kind.decode(), int(inode), int(offset), content[end + 1 : at])


@dataclass
class File:
    """The synced content of a file, and later operations."""

    content: bytearray = field(default_factory=bytearray)
    later: list[Record] = field(default_factory=list[Record])

    def sync(self) -> None:
        for each in self.later:
            _apply(self.content, each)
        self.later.clear()

    def cut(self, chance: random.Random) -> bytearray:
        """Return what the disk may have."""
        found = bytearray(self.content)
        likely = chance.choice([0.0, 0.5, 0.9, 1.0])
        for each in self.later:
            if chance.random() < likely:
                _apply(found, each)
            elif each.kind == "W" and chance.random() < 0.5:
                _tear(found, each, chance)
        return found


def _apply(content: bytearray, record: Record) -> None:
    end = record.offset + len(record.data)
    if record.kind == "T":
        del content[end:]
    content.extend(bytes(max(0, end - len(content))))
    content[record.offset : end] = record.data


def _tear(content: bytearray, record: Record, chance: random.Random) -> None:
    at, end = record.offset, record.offset + len(record.data)
    while at < end:
        next_at = min(end, at - at % SECTOR + SECTOR)
        if chance.random() < 0.5:
            data = record.data[at - record.offset : next_at - record.offset]
            _apply(content, Record("W", 0, at, data))
        at = next_at


class Disk:
    """A folder on a disk whose cache is lost at a power cut."""

    def __init__(self, folder: Path) -> None:
        """Begin with the files of a folder, as synced."""
        self._folder = folder.stat().st_ino
        paths = [*folder.iterdir()]
        self._names = {path.name: File(bytearray(path.read_bytes())) for path in paths}
        self._files = {path.stat().st_ino: self._names[path.name] for path in paths}
        self._later: list[tuple[Record, File | None]] = []
        """Operations on names, with created files: their inodes are used again after a removal."""

    def apply(self, record: Record) -> None:
        """Apply an operation of the process."""
        match record.kind:
            case "C":
                made = self._files[record.inode] = File()
                self._later.append((record, made))
            case "U" | "R":
                self._later.append((record, None))
            case "S" if record.inode == self._folder:
                for each in self._later:
                    _rename(self._names, *each)
                self._later.clear()
            case "S":
                self._files[record.inode].sync()
            case "W" | "T":
                self._files[record.inode].later.append(record)
            case _:
                pass

    def cut(self, chance: random.Random, folder: Path) -> None:
        """Fill a folder with what the disk may have after a power cut now."""
        names = dict(self._names)
        count = chance.randint(0, len(self._later))
        is_journaled = chance.random() < 0.5
        for at, each in enumerate(self._later):
            if at < count if is_journaled else chance.random() < 0.5:
                _rename(names, *each)
        folder.mkdir()
        for name, file in names.items():
            (folder / name).write_bytes(file.cut(chance))


def _rename(names: dict[str, File], record: Record, created: File | None) -> None:
    name, _, other = record.data.decode().partition("\n")
    if created is not None:
        names[name] = created
    elif record.kind == "R" and name in names:
        names[other] = names.pop(name)
    else:
        names.pop(name, None)
