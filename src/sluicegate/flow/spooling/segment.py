"""A segment of a spool: one SQLite file with consecutive items, and what is settled of them.

1. One connection does everything with a file, in exclusive locking mode. So no other process can
   open it, SQLite keeps its index of the log in memory, and the fault of two connections that write
   or checkpoint one log at the same moment (SQLite before 3.51.3) cannot occur.
2. `synchronous=FULL` makes a commit wait until the log is on disk. A transaction that only settles
   items does not wait: if it is lost, they are sent again.
3. Each item has a checksum, since SQLite has none for pages.
4. A file is named by the offsets it may contain: `<first>.open.db` while items are appended to it,
   `<first>-<end>.db` afterwards.
5. A damaged file is never deleted. Its readable items are copied, one by one, to a new file, and it
   is kept beside that as `*.damaged`.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from array import array
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.errors import ConfigError
from .ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

FORMAT = 1
"""The version of the tables, as `user_version` of each file."""
_APPLICATION = 0x736C7567
_TABLES = f"""
BEGIN;
CREATE TABLE spool (id TEXT NOT NULL, first INTEGER NOT NULL);
CREATE TABLE items (
    offset INTEGER PRIMARY KEY, at INTEGER NOT NULL, form INTEGER NOT NULL, value BLOB NOT NULL,
    crc INTEGER NOT NULL
);
CREATE TABLE settled (first INTEGER PRIMARY KEY, "end" INTEGER NOT NULL);
CREATE TABLE extents (batch TEXT PRIMARY KEY, offsets BLOB NOT NULL);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {FORMAT};
COMMIT;
"""
_INSERT = "INSERT INTO items VALUES (?, ?, ?, ?, ?)"
_READ = "SELECT offset, at, form, value, crc FROM items WHERE offset >= ? AND offset < ? ORDER BY offset"
PAGE = 4096
OPEN = ".open.db"
DAMAGED = ".damaged"


class Item(NamedTuple):
    """A stored item."""

    offset: int
    at: int
    """When it was stored: milliseconds since the epoch."""
    form: int
    """How it was encoded; see `encoding`."""
    value: bytes
    crc: int

    @property
    def is_intact(self) -> bool:
        """Whether the value is what was stored."""
        return zlib.crc32(self.value) == self.crc


class Extent(NamedTuple):
    """The items of a batch that is being written, in order."""

    batch: str
    offsets: Sequence[int]


class Segment:
    """An open file. Blocks; used by one thread at a time."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self._durable = durable
        self._db = connect(path)
        self._syncs: bool | None = None
        try:
            self._check_format()
            self.spool: str
            self.first: int
            self.spool, self.first = self._db.execute("SELECT id, first FROM spool").fetchone()
            (last,) = self._db.execute("SELECT max(offset) FROM items").fetchone()
            self.end: int = self.first if last is None else last + 1
            """The offset after the last item."""
            if (named := end_in(path)) is not None:
                self.end = max(self.end, named)
            self._load()
        except BaseException:
            self._db.close()
            raise
        self.bytes = self._measured()
        """The size of the file and its log."""

    @classmethod
    def create(cls, folder: Path, spool: str, first: int, *, durable: bool) -> Self:
        """Create a file for items from `first` on, and open it."""
        path = folder / f"{first:020d}{OPEN}"
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            if not db.execute("PRAGMA user_version").fetchone()[0]:
                db.executescript(_TABLES)
                db.execute("INSERT INTO spool VALUES (?, ?)", (spool, first))
        path.chmod(0o600)
        sync_folder(folder)
        return cls(path, durable=durable)

    def _load(self) -> None:
        self.settled = Ranges(self._db.execute('SELECT first, "end" FROM settled'))
        self.extents: dict[str, Sequence[int]] = {
            batch: _offsets(packed)
            for batch, packed in self._db.execute("SELECT batch, offsets FROM extents")
        }

    def _check_format(self) -> None:
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found != FORMAT:
            raise ConfigError(
                f"{self.path} has format {found}, and this version reads {FORMAT}: open the spool "
                "with the version that wrote it, send what is in it, and start an empty one"
            )

    def _measured(self) -> int:
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        try:
            log = self.path.with_name(f"{self.path.name}-wal").stat().st_size
        except FileNotFoundError:
            log = 0
        return int(pages) * PAGE + log

    # -- transactions ------------------------------------------------------------------------------

    def begin(self, *, syncs: bool) -> None:
        """Begin a transaction, whose commit waits for the disk if it `syncs`."""
        syncs = syncs and self._durable
        if syncs is not self._syncs:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if syncs else 'NORMAL'}")
            self._syncs = syncs
        self._db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit the transaction."""
        self._db.execute("COMMIT")
        self.bytes = self._measured()

    def roll_back(self) -> None:
        """Undo the transaction, if one is open."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._load()

    def append(self, items: Sequence[tuple[Any, ...]]) -> None:
        """Append items; set `end` after the commit."""
        self._db.executemany(_INSERT, items)

    def settle(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Mark items as settled."""
        for first, end in ranges:
            if self.settled.end_of(first) >= end:
                continue
            low, high = self.settled.add(first, end)
            self._db.execute("DELETE FROM settled WHERE first BETWEEN ? AND ?", (low, high))
            self._db.execute("INSERT INTO settled VALUES (?, ?)", (low, high))

    def keep_extent(self, extent: Extent) -> None:
        """Store the extent of a batch that is about to be written."""
        packed = array("q", extent.offsets).tobytes()
        self._db.execute("INSERT OR REPLACE INTO extents VALUES (?, ?)", (extent.batch, packed))
        self.extents[extent.batch] = extent.offsets

    def drop_extent(self, batch: str) -> None:
        """Remove the extent of a batch whose write has ended."""
        if self.extents.pop(batch, None) is not None:
            self._db.execute("DELETE FROM extents WHERE batch = ?", (batch,))

    # -- reading -----------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """The number of offsets that are not settled."""
        return self.end - self.first - self.settled.total

    def items(self, first: int, end: int) -> Iterator[Item]:
        """Yield the items with offsets from `first` up to `end`, settled ones too."""
        return map(Item._make, self._db.execute(_READ, (first, end)))

    def check(self) -> Iterator[str]:
        """Yield what is wrong with the file."""
        for (told,) in self._db.execute("PRAGMA integrity_check(20)"):
            if told != "ok":
                yield str(told)
        for item in self.items(self.first, self.end):
            if not item.is_intact:
                yield f"item {item.offset}: the value is not what was stored"

    # -- the file ----------------------------------------------------------------------------------

    def seal(self, *, reopens: bool) -> None:
        """Name the file by its offsets, since nothing is appended any more; close it unless it
        `reopens`.
        """
        self._db.close()
        sealed = self.path.with_name(f"{self.first:020d}-{self.end:020d}.db")
        self.path.rename(sealed)
        sync_folder(sealed.parent)
        self.path = sealed
        if reopens:
            self._db, self._syncs = connect(sealed), None
            self.bytes = self._measured()

    @property
    def is_sealed(self) -> bool:
        """Whether nothing is appended any more."""
        return not self.path.name.endswith(OPEN)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def remove(self) -> None:
        """Delete the file."""
        self._db.close()
        for name in (self.path, *_beside(self.path)):
            name.unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    """Open a file for the only connection it has."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        db.close()
        raise
    return db


def end_in(path: Path) -> int | None:
    """Return the end in the name of a sealed file."""
    _, dash, end = path.name.removesuffix(".db").partition("-")
    return int(end) if dash else None


def first_in(path: Path) -> int:
    """Return the first offset in the name of a file."""
    return int(path.name[:20])


def rescue(path: Path, spool: str, end: int, *, durable: bool) -> tuple[Segment, Ranges]:
    """Copy the readable items of a damaged file to a new one; return it, and the lost offsets.

    `end` is the offset after the last one that the file may have. The damaged file is kept beside
    it. Each item is looked up by itself: a damaged page hides only its own.
    """
    kept = path.with_name(path.name + DAMAGED)
    for name in _beside(path):
        if name.exists():
            name.rename(kept.with_name(kept.name + name.name.removeprefix(path.name)))
    path.rename(kept)
    made = Segment.create(path.parent, spool, first_in(path), durable=durable)
    lost = Ranges()
    try:
        with closing(connect(kept)) as db:
            _copy(db, made, end, lost)
    except sqlite3.DatabaseError:  # not even a header
        lost.add(made.end, max(end, made.end))
    if lost.total:
        made.begin(syncs=True)
        made.settle(lost)
        made.commit()
    made.end = max(end, made.end)
    if end_in(path) is not None:
        made.seal(reopens=True)
    return made, lost


def _copy(db: sqlite3.Connection, made: Segment, end: int, lost: Ranges) -> None:
    made.begin(syncs=True)
    last = end - 1
    with suppress(sqlite3.DatabaseError):
        last = max(last, db.execute("SELECT max(offset) FROM items").fetchone()[0] or last)
    for offset in range(made.first, last + 1):
        try:
            found = db.execute(_READ, (offset, offset + 1)).fetchone()
        except sqlite3.DatabaseError:
            found = None
        if found is None:
            lost.add(offset, offset + 1)
        else:
            made.append([Item._make(found)])
            made.end = offset + 1
    with suppress(sqlite3.DatabaseError):
        made.settle(db.execute('SELECT first, "end" FROM settled').fetchall())
    with suppress(sqlite3.DatabaseError):
        for batch, packed in db.execute("SELECT batch, offsets FROM extents").fetchall():
            made.keep_extent(Extent(batch, _offsets(packed)))
    made.commit()


def _offsets(packed: bytes) -> Sequence[int]:
    return array("q", packed)


def _beside(path: Path) -> Sequence[Path]:
    return [path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal")]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
