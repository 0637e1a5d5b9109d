"""The items that cannot be delivered: copied to a file of their own before they are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .segment import FORMAT, Item, check, connect, other_format

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


NAME = "parked.sqlite"
_TABLE = f"""
BEGIN;
CREATE TABLE parked (
    offset INTEGER PRIMARY KEY, at INTEGER NOT NULL, form INTEGER NOT NULL, value BLOB NOT NULL,
    crc INTEGER NOT NULL, parked_at INTEGER NOT NULL, error_type TEXT NOT NULL, message TEXT NOT NULL,
    attempts INTEGER NOT NULL, maybe_delivered INTEGER NOT NULL
);
PRAGMA user_version = {FORMAT};
COMMIT;
"""


class ParkedItem(NamedTuple):
    """An item that could not be delivered, and why."""

    item: Item
    parked_at: int
    """Milliseconds since the epoch."""
    error_type: str
    message: str
    attempts: int
    maybe_delivered: bool
    """Whether an attempt may have been applied."""


class ParkedFile:
    """The file of parked items. Blocks; used by one thread at a time."""

    def __init__(self, folder: Path, opens: Callable[[Path], sqlite3.Connection] = connect) -> None:
        self.path = folder / NAME
        self._opens = opens
        self._db: sqlite3.Connection | None = None
        self.total = 0
        """The number of items, while the file is open."""

    @property
    def exists(self) -> bool:
        """Whether anything was ever parked."""
        return self.path.exists()

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            if not self.exists:
                self.path.touch(mode=0o600)  # its log gets the mode of the file
            db = self._opens(self.path)
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if not found:
                db.executescript(_TABLE)
            elif found != FORMAT:
                db.close()
                raise other_format(self.path, found)
            db.execute("PRAGMA synchronous = FULL")
            (self.total,) = db.execute("SELECT count(*) FROM parked").fetchone()
            self._db = db
        return self._db

    def add(self, parked: Sequence[ParkedItem]) -> None:
        """Store items; those that are there already stay as they are."""
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            added = db.executemany(
                "INSERT OR IGNORE INTO parked VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*each.item, *each[1:]) for each in parked],
            ).rowcount
        self.total += added

    def items(self, first: int = 0, most: int = -1) -> Iterator[ParkedItem]:
        """Yield items from an offset on, in the order of offsets."""
        if not self.exists:
            return
        query = "SELECT * FROM parked WHERE offset >= ? ORDER BY offset LIMIT ?"
        for row in self._open().execute(query, (first, most)):
            at, kind, message, attempts, maybe = row[5:]
            yield ParkedItem(Item(*row[:5]), at, kind, message, attempts, bool(maybe))

    def count(self) -> int:
        """Return the number of items."""
        if self.exists:
            self._open()
        return self.total

    def check(self) -> Iterator[str]:
        """Yield what is wrong with the file. Raises `DatabaseError` if it cannot be read."""
        if self.exists:
            yield from check(self._open(), (each.item for each in self.items()))

    def remove(self, offsets: Sequence[int]) -> None:
        """Remove items."""
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            removed = db.executemany(
                "DELETE FROM parked WHERE offset = ?", [(each,) for each in offsets]
            ).rowcount
        self.total -= removed

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
            self._db = None
