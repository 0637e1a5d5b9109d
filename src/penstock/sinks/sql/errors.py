"""The classification of SQLAlchemy errors by the database's error.

1. The server's code decides: the SQLSTATE of PostgreSQL, the number of MySQL and MariaDB, the name
   of SQLite.
2. A lost connection is transient unless rows may be stored, which only the writer knows.
3. A missing table, column, permission or disk space is refused: good rows wait instead of failing.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from ..._clients.postgres.errors import NO_PRIVILEGE, checks_privileges, classify_postgres
from ..._core.causes import causes
from ..._core.classify import classified_by_cause
from ..._core.errors import ErrorClass

_P, _T, _U, _R = (
    ErrorClass.PERMANENT,
    ErrorClass.TRANSIENT,
    ErrorClass.UNAVAILABLE,
    ErrorClass.REFUSED,
)
_MYSQL = {
    1021: _R,  # disk full
    1040: ErrorClass.THROTTLE,  # too many connections
    1041: _T,  # out of memory
    1044: _R,  # no permission for the database
    1045: _R,  # login
    1049: _R,  # no such database
    1053: _U,  # shutting down
    1054: _R,  # no such column
    1114: _R,  # the table is full
    1129: _R,  # the host is blocked
    1130: _R,  # the host is not allowed to connect
    1142: _R,  # no permission for the table
    1143: _R,  # no permission for the column
    1146: _R,  # no such table
    1153: _P,  # a packet too large
    1205: _T,  # lock wait timeout
    1213: _T,  # deadlock
    1226: ErrorClass.THROTTLE,  # too many statements of the user
    1227: _R,  # no permission
    1290: _R,  # read-only
    1317: _T,  # interrupted
    1364: _R,  # a column without a default has no value, in any row
    1792: _R,  # read-only transaction
    1836: _R,  # read-only
    1969: _T,  # statement timeout, MariaDB
    2002: _U,
    2003: _U,
    2005: _U,
    2006: _T,
    2013: _T,
    3024: _T,  # statement timeout, MySQL
}
MYSQL_TWICE = frozenset({1062, 1586})
_SQLITE = {
    "SQLITE_AUTH": _R,
    "SQLITE_BUSY": _T,
    "SQLITE_CANTOPEN": _U,
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
    "SQLITE_SCHEMA": _T,
}
SQLITE_TWICE = frozenset({"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"})
_REFUSED = ("password authentication failed", "no pg_hba.conf entry", 'database "', 'role "')
"""Connection errors of psycopg have no SQLSTATE."""
_MISSING = ("no such table", "no such column", "has no column named")
POSTGRES_TWICE = "23505"


def classify_sql(error: BaseException) -> ErrorClass | None:
    """The class of an error of SQLAlchemy or of a driver; `None` for any other error. Looks through
    causes.
    """
    return classified_by_cause(error, _class_of)


def is_twice(error: BaseException) -> bool:
    """Whether an error is a violation of a unique key."""
    for link in causes(error):
        original = _original(link)
        if isinstance(original, sqlite3.Error):
            return _sqlite_name(original) in SQLITE_TWICE
        if (number := _number(original)) is not None:
            return number in MYSQL_TWICE
        if (state := _state(original)) is not None:
            return state == POSTGRES_TWICE
    return False


def is_lost(error: BaseException) -> bool:
    """Whether the connection on which the statement was sent is lost, or did not respond in time."""
    from sqlalchemy.exc import DBAPIError

    return any(
        (isinstance(link, DBAPIError) and link.connection_invalidated)
        or isinstance(link, TimeoutError)  # of the driver, not of the pool
        for link in causes(error)
    )


def is_refusal(error: BaseException) -> bool:
    """Whether a driver's own error means that the server or the driver has refused the statement,
    so that none of its rows are stored.
    """
    number = _number(error)
    if number is not None:
        return not 2000 <= number < 3000  # codes of the MySQL client
    return _state(error) is not None or isinstance(error, (TypeError, ValueError))


def _original(error: BaseException) -> BaseException:
    """The driver's error inside an SQLAlchemy error."""
    from sqlalchemy.exc import StatementError

    found = error.orig if isinstance(error, StatementError) else None
    return error if found is None else found


def _class_of(error: BaseException) -> ErrorClass | None:
    from sqlalchemy import exc

    original = _original(error)
    if isinstance(original, sqlite3.Error):
        return _of_sqlite(original)
    if (number := _number(original)) is not None:
        return _MYSQL.get(number, _P)
    if (state := _state(original)) is not None:
        return _of_postgres(original, state)
    if isinstance(error, exc.TimeoutError):  # of the pool
        return _T
    if isinstance(error, exc.DBAPIError):
        if error.connection_invalidated:
            return _T
        if isinstance(error, exc.OperationalError):
            return _R if any(part in str(original) for part in _REFUSED) else None
        return _P  # the driver refuses a value
    if isinstance(error, (exc.StatementError, TypeError, ValueError, OverflowError)):
        return _P  # a value that cannot be bound, by SQLAlchemy or by its driver
    return None


def _of_postgres(error: BaseException, state: str) -> ErrorClass | None:
    """The class by SQLSTATE, and for a missing privilege by the server's routine, which each driver
    stores elsewhere.
    """
    if state == NO_PRIVILEGE:
        own = getattr(error.__cause__, "server_source_function", None)  # asyncpg
        routine = own or getattr(getattr(error, "diag", None), "source_function", None)
        return _R if checks_privileges(routine) else _P
    return classify_postgres(error)


def _of_sqlite(error: sqlite3.Error) -> ErrorClass:
    name, text = _sqlite_name(error), str(error)
    if any(part in text for part in _MISSING):
        return _R
    parts = name.split("_")
    known = _SQLITE.get("_".join(parts[:2]))
    return _P if known is None else known


def _sqlite_name(error: sqlite3.Error) -> str:
    name: str = getattr(error, "sqlite_errorname", None) or ""
    return name


def _state(error: BaseException) -> str | None:
    """The SQLSTATE of a PostgreSQL driver's error."""
    for name in ("sqlstate", "pgcode"):
        if isinstance(found := getattr(error, name, None), str):
            return found
    return None


def _number(error: Any) -> int | None:
    """The number of a MySQL driver's error: its first argument. Some also have a SQLSTATE, which is
    less specific.
    """
    arguments = getattr(error, "args", ())
    module = type(error).__module__
    if arguments and isinstance(arguments[0], int) and not module.startswith("builtins"):
        return arguments[0]
    return None
