"""The classes of SQLite errors, by the name of their code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import ErrorClass

if TYPE_CHECKING:
    import sqlite3

_P, _T, _R = ErrorClass.PERMANENT, ErrorClass.TRANSIENT, ErrorClass.REFUSED
MOVED = "SQLITE_READONLY_DBMOVED"
"""The file was removed or replaced."""
_CLASSES = {
    "SQLITE_AUTH": _R,
    "SQLITE_BUSY": _T,
    "SQLITE_CANTOPEN": ErrorClass.UNAVAILABLE,
    "SQLITE_CORRUPT": _R,
    "SQLITE_ERROR": _R,  # an error of the statement, not of a value
    "SQLITE_FULL": _R,
    "SQLITE_INTERRUPT": _T,
    "SQLITE_IOERR": _T,
    "SQLITE_LOCKED": _T,
    "SQLITE_NOMEM": _T,
    "SQLITE_NOTADB": _R,
    "SQLITE_PERM": _R,
    "SQLITE_PROTOCOL": _T,
    "SQLITE_READONLY": _R,
    MOVED: _T,
    "SQLITE_SCHEMA": _T,
}
_MISSING = ("no such table", "no such column", "has no column named")


def class_of_sqlite(error: sqlite3.Error) -> ErrorClass:
    """Return the class of an error; permanent for a code that is not listed, or without one."""
    name = sqlite_name(error)
    if any(part in str(error) for part in _MISSING):
        return _R
    known = _CLASSES.get(name) or _CLASSES.get("_".join(name.split("_")[:2]))
    return _P if known is None else known


def sqlite_name(error: sqlite3.Error) -> str:
    """Return the name of the extended code; empty for an error of the driver itself."""
    name: str = getattr(error, "sqlite_errorname", None) or ""
    return name
