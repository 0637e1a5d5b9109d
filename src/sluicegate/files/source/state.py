"""The files of a subscription and their positions, in an SQLite file. Every method blocks.

1. The open file is locked: one process reads the files of a subscription at a time. The lock ends
   with the process, however it ends.
2. A file gets a permanent number when it is found, its partition. New files are numbered after the
   known ones, so no number changes, whatever the order of the names.
3. A scan compares the known files with the folder. A file that is not finished has to exist. A
   finished file may be removed; as long as it exists, it must be as it was at its end.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core.checks import bad, known_format
from ..._core.errors import ConfigError
from ..._core.source import Position
from .finding import Recorded, difference, form_of, record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .options import FileOptions

FORMAT = 1
"""The version of the table, as `user_version` of the file."""
BUSY = 5.0
"""The longest wait in seconds for another process that ends."""
_TABLE = """
CREATE TABLE IF NOT EXISTS sluicegate_file (
  subscription TEXT, number INTEGER, path BLOB, size INTEGER, modified INTEGER,
  position INTEGER, metadata TEXT, finished INTEGER, PRIMARY KEY (subscription, number)
) WITHOUT ROWID
"""
_STORE = """
UPDATE sluicegate_file SET position = ?, metadata = ?, finished = ?
WHERE subscription = ? AND number = ?
"""
_VANISHED = "it no longer exists, and was not read to its end"
_CHANGED = (
    "it was written to after it had been read to its end; the added rows are not read. Put them "
    "into a new file"
)


@dataclass(slots=True, eq=False)
class FileEntry:
    """A file of the subscription. `number` is that of its partition."""

    number: int
    recorded: Recorded
    position: Position
    """As stored."""
    is_finished: bool = False
    """Whether all its rows are settled."""
    trouble: str | None = None
    """The reason why it cannot be read any further."""

    @property
    def path(self) -> str:
        """Its relative path."""
        return self.recorded.path

    def fail(self, reason: str | None) -> None:
        """Record that the file cannot be read any further; `None` has no effect."""
        self.trouble = reason or self.trouble

    def move(self, position: Position, *, is_finished: bool) -> None:
        """Record the stored position."""
        self.position, self.is_finished = position, is_finished


class FileState:
    """The open SQLite file. Used by one thread at a time."""

    _con: sqlite3.Connection

    def __init__(self, path: Path, subscription: str) -> None:
        self._path = path
        self._name = subscription
        self._closing = ExitStack()

    def open(self) -> None:
        """Open and lock the file. Raises `ConfigError`; closing is needed even then."""
        try:
            con = sqlite3.connect(
                self._path, timeout=BUSY, isolation_level=None, check_same_thread=False
            )
            self._con = self._closing.enter_context(closing(con))
            self._con.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._con.execute("BEGIN EXCLUSIVE")  # the lock stays until the connection is closed
            ((found,),) = self._con.execute("PRAGMA user_version").fetchall()
            known_format("state", str(self._path), found or FORMAT, FORMAT)
            self._con.execute(_TABLE)
            self._con.execute(f"PRAGMA user_version = {FORMAT}")
            self._con.execute("COMMIT")
        except sqlite3.Error as error:
            if "is locked" in str(error):
                rule = "is used by another process, and one at a time reads these files"
                raise bad("state", str(self._path), rule) from error
            rule = (
                f"must be a file that SQLite can write ({error}); pass state= to keep it elsewhere"
            )
            raise bad("state", str(self._path), rule) from error

    def close(self) -> None:
        """Close and unlock the file, if it was opened."""
        self._closing.close()

    def load(self, options: FileOptions, root: Path) -> tuple[list[FileEntry], dict[str, str]]:
        """Scan the folder; return the known and the new files, and reasons by path of those that
        could not be inspected.

        Raises `ConfigError` for a file of unknown format, `MissingExtra`, and `sqlite3.Error`.
        """
        rows = self._con.execute(
            "SELECT path, size, modified, position, metadata, finished FROM sluicegate_file "
            "WHERE subscription = ? ORDER BY number",
            (self._name,),
        )
        entries = [
            FileEntry(
                number,
                Recorded(os.fsdecode(path), size, modified),
                Position(at, text),
                bool(is_finished),
            )
            for number, (path, size, modified, at, text, is_finished) in enumerate(rows)
        ]
        for entry in entries:
            entry.fail(_trouble_of(root, entry))
        known = {entry.path for entry in entries}
        found = options.files.find()
        refused, new = found.refused, list[FileEntry]()
        for path in found.paths:
            form_of(path, options.format)
            if path not in known:
                try:
                    new.append(FileEntry(len(entries) + len(new), record(root, path), Position(0)))
                except OSError as error:
                    refused[path] = error.strerror or str(error)
        self._enter(new)
        return [*entries, *new], refused

    def _enter(self, new: Sequence[FileEntry]) -> None:
        self._con.execute("BEGIN")
        self._con.executemany(
            "INSERT INTO sluicegate_file VALUES (?, ?, ?, ?, ?, 0, '', 0)",
            [(self._name, each.number, os.fsencode(each.path), *each.recorded[1:]) for each in new],
        )
        self._con.execute("COMMIT")

    def store(self, moves: Sequence[tuple[FileEntry, Position, bool]]) -> None:
        """Store positions, and whether the files are finished with them. Raises `sqlite3.Error`."""
        self._con.execute("BEGIN")
        try:
            self._con.executemany(
                _STORE, [(*at, is_end, self._name, entry.number) for entry, at, is_end in moves]
            )
            self._con.execute("COMMIT")
        except BaseException:
            if self._con.in_transaction:
                self._con.execute("ROLLBACK")
            raise
        for entry, position, is_end in moves:
            entry.move(position, is_finished=is_end)


def _trouble_of(root: Path, entry: FileEntry) -> str | None:
    try:
        status = (root / entry.path).stat()
    except FileNotFoundError:
        return None if entry.is_finished else _VANISHED
    except OSError as error:
        return error.strerror or str(error)
    if entry.is_finished and difference(entry.recorded, status) is not None:
        return _CHANGED
    return None


def check_found(
    entries: Sequence[FileEntry], refused: dict[str, str], options: FileOptions, reasons: str
) -> None:
    """Raise `ConfigError` if there is no file."""
    if not entries:
        why = f" ({reasons})" if refused else ""
        raise ConfigError(
            f"no file matches {options.files}{why}: name a directory, a file or a pattern such as "
            '"events/*.ndjson"'
        )
