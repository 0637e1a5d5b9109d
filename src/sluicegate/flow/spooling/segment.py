"""A segment of a spool: one SQLite file with consecutive items, and what is settled of them.

1. One connection does everything with a file, in exclusive locking mode. So no other process can
   open it, SQLite keeps its index of the log in memory, and the fault of two connections that write
   or checkpoint one log at the same moment (SQLite before 3.51.3) cannot occur.
2. `synchronous=FULL` makes a commit wait until the log is on disk. A transaction that only settles
   items does not wait: if it is lost, they are sent again. It waits if the extent of their batch is
   in another file: that must not be removed before.
3. Each item has a checksum, since SQLite has none for pages.
4. A file is named by the offsets it may contain: `<first>.open.db` while items are appended to it,
   `<first>-<end>.db` afterwards.
5. A damaged file is never deleted. Its readable items are copied, one by one, to a new file, and it
   is kept next to that as `*.damaged`.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import zlib
from array import array
from contextlib import closing, suppress
from itertools import count
from shutil import copyfile
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.errors import ConfigError
from ..._core.runtime import process_fork
from .ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
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
_READ_ONE = "SELECT offset, at, form, value, crc FROM items WHERE offset = ?"
PAGE = 4096
_uses = count()
OPEN = ".open.db"
DAMAGED = ".damaged"
RESCUED = ".rescued"
_COPY = ".copy"
_NEW = ".new"
_TYPES = (int, int, int, bytes, int)
_LEAST_ROW = 20
"""The least bytes of a row."""
_UNKNOWN = 1 << 32
"""The offsets that are left out after a file of which the last ones are not known."""


class Encoded(NamedTuple):
    """An item to be stored."""

    at: int
    form: int
    value: bytes
    crc: int


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
        """Whether the value equals the stored one."""
        return zlib.crc32(self.value) == self.crc


class Extent(NamedTuple):
    """The items of a batch that is being written, in order."""

    batch: str
    offsets: Sequence[int]


class Segment:
    """An open file. Blocks; used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        *,
        durable: bool,
        opens: Callable[[Path], sqlite3.Connection] | None = None,
    ) -> None:
        self.path = path
        self._durable = durable
        self._opens = opens or connect
        self._syncs: bool | None = None
        self._connection: sqlite3.Connection | None = None
        self._noted: list[tuple[int, int]] = []
        self.used = 0
        """When it was last used: a number that increases with each use."""
        self.open()

    def open(self) -> None:
        """Open the file, or a repaired one in its place."""
        path = self.path
        try:
            self._check_format()
            self.spool: str
            (self.spool,) = self._db.execute("SELECT id FROM spool").fetchone()
            self.first = first_in(path)
            (last,) = self._db.execute("SELECT max(offset) FROM items").fetchone()
            self.end: int = self.first if last is None else last + 1
            """The offset after the last item."""
            self._load()
            self.end = max([self.end, end_in(path) or 0, *(end for _, end in self.settled)])
        except BaseException:
            self.close()
            raise
        self.bytes = self._measured()
        """The size of the file and its log."""

    @property
    def _db(self) -> sqlite3.Connection:
        self.used = next(_uses)
        if self._connection is None:
            self._connection = self._opens(self.path)
        return self._connection

    @classmethod
    def create(cls, path: Path, spool: str, first: int, *, durable: bool) -> Self:
        """Create a file for items from `first` on, and open it."""
        new = path.with_name(path.name + _NEW)
        _unlink(new)
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.executescript(_TABLES)
            db.execute("INSERT INTO spool VALUES (?, ?)", (spool, first))
        new.chmod(0o600)
        new.rename(path)
        sync_folder(path.parent)
        return cls(path, durable=durable)

    def _load(self) -> None:
        self.settled = Ranges(self._db.execute('SELECT first, "end" FROM settled'))
        self.extents: dict[str, Sequence[int]] = {
            batch: _offsets(packed)
            for batch, packed in self._db.execute("SELECT batch, offsets FROM extents")
        }

    def _check_format(self) -> None:
        (ours,) = self._db.execute("PRAGMA application_id").fetchone()
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if ours != _APPLICATION:
            raise NotASpool("not a file of a spool")
        if found != FORMAT:
            raise other_format(self.path, found)

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
        self._noted.clear()
        self.bytes = self._measured()

    def roll_back(self) -> None:
        """Undo the transaction, if one is open."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._load()
        for noted in self._noted:
            self.settled.add(*noted)

    def append(self, items: Sequence[tuple[Any, ...]]) -> None:
        """Append items; call `appended` after the commit."""
        self._db.executemany(_INSERT, items)

    def appended(self, end: int) -> None:
        """Note the offset after the last item."""
        self.end = end

    def settle(self, ranges: Iterable[tuple[int, int]], *, again: bool = False) -> None:
        """Mark items as settled; `again`, also those that are, since a commit without changes does
        not wait for the disk.
        """
        again = again or bool(self._noted)
        for first, end in [*self._noted, *ranges]:
            if self.settled.end_of(first) >= end and not again:
                continue
            low, high = self.settled.add(first, end)
            self._db.execute("DELETE FROM settled WHERE first BETWEEN ? AND ?", (low, high))
            self._db.execute("INSERT INTO settled VALUES (?, ?)", (low, high))

    def note(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Remember items that are settled, although the disk is too full to store that."""
        for first, end in ranges:
            self._noted.append(self.settled.add(first, end))

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

    def time_of(self, offset: int) -> int | None:
        """Return when an item was stored, in milliseconds since the epoch."""
        found = self._db.execute("SELECT at FROM items WHERE offset = ?", (offset,)).fetchone()
        return None if found is None else int(found[0])

    def items(self, first: int, end: int) -> Iterator[Item]:
        """Yield the items with offsets from `first` up to `end`, settled ones too."""
        return map(_item, self._db.execute(_READ, (first, end)))

    def check(self) -> Iterator[str]:
        """Yield what is wrong with the file. Raises `DatabaseError` if it cannot be read."""
        yield from check(self._db, self.items(self.first, self.end))
        offsets = self._db.execute("SELECT offset FROM items")
        missing = self.unsettled - sum(offset not in self.settled for (offset,) in offsets)
        if missing:
            yield f"{missing} unsettled items are missing"

    # -- the file ----------------------------------------------------------------------------------

    def seal(self) -> None:
        """Name the file by its offsets, since nothing is appended any more. Closes it until its next
        use. Raises errors of the disk; it is then appended to as before.
        """
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # closing would hide an error of it
        self.close()
        sealed = self.path.with_name(f"{self.first:020d}-{self.end:020d}.db")
        self.path = self.path.rename(sealed)
        sync_folder(sealed.parent)
        self.bytes = sealed.stat().st_size

    @property
    def is_sealed(self) -> bool:
        """Whether nothing is appended any more."""
        return not self.path.name.endswith(OPEN)

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection."""
        return self._connection is not None

    def close(self) -> None:
        """Close the connection until the next use."""
        if self._connection is not None:
            self._connection.close()
            self._connection = self._syncs = None

    def remove(self) -> None:
        """Delete the file."""
        self.close()
        _unlink(self.path)


def code_of(error: BaseException) -> int:
    """Return the primary code of an error of SQLite; 0 for any other error."""
    if not isinstance(error, sqlite3.Error):
        return 0
    try:
        return error.sqlite_errorcode & 0xFF
    except AttributeError:  # of the module, and not of the library
        return 0


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")  # it may be damaged


def other_format(path: Path, found: int) -> ConfigError:
    """Return the error for a file of another format."""
    return ConfigError(
        f"{path} has format {found}, and this version reads {FORMAT}: open the spool with the "
        "version that wrote it, send what is in it, and start an empty one"
    )


class NotASpool(sqlite3.DatabaseError):
    """A file without the tables of a segment."""

    sqlite_errorcode = sqlite3.SQLITE_NOTADB


class _Connection(sqlite3.Connection):
    """Never closed in a forked child, even at its exit: that would delete the log of the parent."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.text_factory = _text

    def after_fork(self) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def connect(path: Path) -> sqlite3.Connection:
    """Open a file for the only connection it has."""
    db = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=0, factory=_Connection
    )
    process_fork.watch(db)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        db.close()
        raise
    return db


def check(db: sqlite3.Connection, items: Iterable[Item]) -> Iterator[str]:
    """Yield what is wrong with a file and its items."""
    for (told,) in db.execute("PRAGMA integrity_check(20)"):
        if told != "ok":
            yield str(told)
    for item in items:
        if not item.is_intact:
            yield f"item {item.offset}: the value is not what was stored"


def end_in(path: Path) -> int | None:
    """Return the end in the name of a sealed file."""
    _, dash, end = path.name.partition(".")[0].partition("-")
    return int(end) if dash else None


def first_in(path: Path) -> int:
    """Return the first offset in the name of a file."""
    return int(path.name[:20])


class Lost(NamedTuple):
    """The items that a damaged file had, and its copy has not."""

    offsets: Ranges
    is_all: bool
    """Whether there were no later ones."""


def rescue(path: Path, spool: str, end: int, *, durable: bool) -> Lost:
    """Replace a damaged file by a new one with its readable items; return which are lost.

    `end` is the offset after the last one that the file may have; 0 if that is not known. A crash
    leaves the damaged file, or a whole copy for `finish_rescue`.
    """
    copy = path.with_name(path.name + _COPY)
    _unlink(copy)
    made = Segment.create(copy, spool, first_in(path), durable=durable)
    try:
        lost = _copy(path, made, end)
    finally:
        made.close()
    copy.rename(path.with_name(path.name + RESCUED))
    finish_rescue(path)
    return lost


def finish_rescue(path: Path) -> None:
    """Put the copy of a damaged file in its place, and keep that one next to it."""
    number = sum(1 for _ in path.parent.glob(f"{path.name}.*{DAMAGED}")) + 1
    kept = path.with_name(f"{path.name}.{number}{DAMAGED}")
    for name in (*beside(path), path):
        if name.exists():
            name.rename(kept.with_name(kept.name + name.name.removeprefix(path.name)))
    path.with_name(path.name + RESCUED).rename(path)
    sync_folder(path.parent)


def _copy(path: Path, made: Segment, end: int) -> Lost:
    log = path.with_name(f"{path.name}-wal")
    size = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
    repaired = path.with_name(path.name + _COPY + "-repair")
    try:
        with closing(_connect_damaged(path, repaired, made)) as db:
            with suppress(sqlite3.DatabaseError, TypeError):
                end = max(end, db.execute("SELECT max(offset) FROM items").fetchone()[0] + 1)
            rows = _rows(db, made.first, end or made.first + size // _LEAST_ROW)
            made.begin(syncs=True)
            made.append([item for item in map(_item, rows) if item.is_intact])
            made.settle(_read(db, 'SELECT first, "end" FROM settled'))
            for batch, packed in _read(db, "SELECT batch, offsets FROM extents"):
                made.keep_extent(Extent(batch, _offsets(packed)))
    finally:
        _unlink(repaired)
    gone, at = Ranges(made.settled), made.first
    for row in rows:
        gone.add(row[0], row[0] + 1)
    lost, is_all = Ranges(), end > 0
    end = end or max([made.first, *(each for _, each in gone)])
    while at < end:
        if (whole := gone.end_of(at)) == at:
            whole = min(end, gone.next_after(at) or end)
            lost.add(at, whole)
        at = whole
    made.settle(lost)
    if not is_all:
        made.settle([(end, end + _UNKNOWN)])
    made.commit()
    return Lost(lost, is_all)


def _connect_damaged(path: Path, repaired: Path, made: Segment) -> sqlite3.Connection:
    """Connect to a damaged file; if its first page is unreadable, to a copy with that of a new file,
    which differs in counters only.
    """
    try:
        db = connect(path)
        try:
            db.execute("SELECT 1 FROM items, settled, extents LIMIT 0")
        except BaseException:
            db.close()
            raise
    except sqlite3.DatabaseError:
        for name in (path, path.with_name(f"{path.name}-wal")):
            if name.exists():
                copyfile(name, repaired.with_name(repaired.name + name.name[len(path.name) :]))
        with made.path.open("rb") as whole, repaired.open("r+b") as file:
            page = whole.read(PAGE)
            file.write(page[:28] + bytes(4) + page[32:])  # its size is that of the file
            file.truncate(max(file.seek(0, os.SEEK_END), made.path.stat().st_size))
        return connect(repaired)
    return db


def _rows(db: sqlite3.Connection, first: int, end: int) -> list[Any]:
    """Return the readable items: a damaged page hides only its own."""
    try:
        if end - first == 1:  # a range looks at the next item too, which may be on another page
            return db.execute(_READ_ONE, (first,)).fetchall()
        return db.execute(_READ, (first, end)).fetchall()
    except sqlite3.DatabaseError:
        if end - first <= 1:
            return []
        middle = (first + end) // 2
        return _rows(db, first, middle) + _rows(db, middle, end)


def _read(db: sqlite3.Connection, query: str) -> list[Any]:
    try:
        return db.execute(query).fetchall()
    except sqlite3.DatabaseError:
        return []


def _item(row: Sequence[Any]) -> Item:
    """Make an item of a row, which may be damaged."""
    if tuple(map(type, row)) != _TYPES:
        return Item(row[0], 0, 0, b"", -1)
    return Item(*row)


def _offsets(packed: bytes) -> Sequence[int]:
    return array("q", packed)


def _unlink(path: Path) -> None:
    for name in (path, *beside(path)):
        name.unlink(missing_ok=True)


def beside(path: Path) -> Sequence[Path]:
    """Return the files that SQLite may have next to a file."""
    return [path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal")]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
