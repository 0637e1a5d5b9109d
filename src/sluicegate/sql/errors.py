"""The classification of SQLAlchemy errors by the database's error.

1. The server's code decides: the number of MySQL and MariaDB, the name
   of SQLite.
2. A missing table, column, permission or disk space is refused: good rows wait instead of failing.
3. Drivers raise any class of error for a connection that breaks, so the phase decides: while
   connecting, beginning or reading the table it is an outage (`for_connecting`); in a transaction
   nothing is stored; during a COMMIT or a statement that commits by itself the outcome is unknown.
4. Only a proof makes a statement a refused one (`is_refusal`): the server's code, or an error that
   the driver raises before it sends. Everything else is a lost connection.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from .._core.classify import caused, causes, classified, classified_by_cause
from .._core.errors import ErrorClass, RefusedError, SluicegateError, UnavailableError
from .._core.text import text_of

_P, _T, _U, _R, _H = (
    ErrorClass.PERMANENT,
    ErrorClass.TRANSIENT,
    ErrorClass.UNAVAILABLE,
    ErrorClass.REFUSED,
    ErrorClass.THROTTLE,
)
_MYSQL = {
    1020: _T,  # changed since the last read
    1021: _R,  # disk full
    1026: _R,  # a file cannot be written
    1030: _T,  # of the storage engine
    1036: _R,  # the table is read-only
    1037: _T,  # out of memory
    1040: _H,  # too many connections
    1041: _T,  # out of memory
    1044: _R,  # no permission for the database
    1045: _R,  # login
    1046: _R,  # no database
    1047: _U,  # a node that is not in its cluster
    1049: _R,  # no such database
    1053: _U,  # shutting down
    1054: _R,  # no such column
    1064: _R,  # syntax
    1105: _T,  # unknown, such as of a proxy
    1114: _R,  # the table is full
    1129: _R,  # the host is blocked
    1130: _R,  # the host is not allowed to connect
    1136: _R,  # number of columns, in a trigger
    1142: _R,  # no permission for the table
    1143: _R,  # no permission for the column
    1146: _R,  # no such table
    1153: _P,  # a packet too large
    1158: _T,  # network
    1159: _T,
    1160: _T,
    1161: _T,
    1194: _R,  # the table is damaged
    1195: _R,
    1203: _H,  # too many connections of the user
    1205: _T,  # lock wait timeout
    1206: _T,  # too many locks
    1213: ErrorClass.DEADLOCK,
    1226: _H,  # too many statements of the user
    1227: _R,  # no permission
    1290: _R,  # read-only
    1305: _R,  # no such function, in a trigger
    1317: _T,  # interrupted
    1356: _R,  # a view that is invalid
    1364: _R,  # a column without a default has no value, in any row
    1370: _R,  # no permission for a function
    1442: _R,  # a trigger changes its own table
    1449: _R,  # no such definer
    1637: _T,  # too many transactions
    1698: _R,  # login
    1792: _R,  # read-only transaction
    1812: _R,  # no tablespace
    1814: _R,
    1820: _R,  # the password has expired
    1836: _R,  # read-only
    1862: _R,  # the password has expired
    1906: _R,  # a generated column, in any row
    1927: _T,  # the connection was killed
    1932: _R,  # the table is not in its engine
    1969: _T,  # statement timeout, MariaDB
    2002: _U,
    2003: _U,
    2005: _U,
    2006: _T,
    2013: _T,
    3024: _T,  # statement timeout, MySQL
    3100: _T,  # group replication
    3101: _T,
    3105: _R,  # a generated column, in any row
    3118: _R,  # the user is locked
    4031: _T,  # idle for too long
    4151: _R,  # the user is locked
}
MYSQL_TWICE = frozenset({1062, 1586})
SQLITE_TWICE = frozenset({"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"})
_BEFORE_SENDING = frozenset(
    {"DataError", "InterfaceError", "NotSupportedError", "ProgrammingError"}
)
"""Errors without a code, of a value that a driver cannot send."""
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
            return sqlite_name(original) in SQLITE_TWICE
        if (number := _number(original)) is not None:
            return number in MYSQL_TWICE
    return False


def is_lost(error: BaseException) -> bool:
    """Whether the server has not answered the statement: the connection is lost, or the response
    did not arrive in time.
    """
    return not isinstance(error, SluicegateError) and not is_refusal(error)


def is_timeout(error: BaseException) -> bool:
    """Whether the driver has ended the session because it took too long."""
    return any(isinstance(link, TimeoutError) for link in causes(error))


def for_connecting(error: Exception) -> Exception:
    """The error of a failed connection, `BEGIN` or query of the table's definition.

    Nothing of the batch was sent, and no item is the cause: an outage, or a refusal that an
    operator repairs. SQLite has no connection, so its errors keep their class.
    """
    if isinstance(error, SluicegateError):
        return error
    kind = classified(error, classify_sql)
    if kind in {ErrorClass.REFUSED, ErrorClass.THROTTLE, ErrorClass.UNAVAILABLE}:
        return error
    if kind is ErrorClass.PERMANENT and is_refusal(error):
        repair = "correct the address, the options or the state of the database"
        told = f"the database or its driver refuses before a write ({text_of(error)})"
        return caused(RefusedError(told, repair=repair), error)
    if isinstance(_original(error), sqlite3.Error):
        return error
    told = f"no connection to the database ({text_of(error) or type(error).__name__})"
    return caused(UnavailableError(told), error)


def is_moved(error: BaseException) -> bool:
    """Whether the file of SQLite was removed or replaced, so that only a new connection finds it."""
    originals = map(_original, causes(error))
    return any(isinstance(link, sqlite3.Error) and sqlite_name(link) == MOVED for link in originals)


def is_refusal(error: BaseException) -> bool:
    """Whether the server or the driver has certainly refused the statement, so that none of its
    rows are stored.
    """
    from sqlalchemy.exc import DBAPIError, StatementError

    links = [*causes(error)]
    for link in links:
        if isinstance(link, DBAPIError) and link.connection_invalidated:
            return False
        if isinstance(link, (OSError, EOFError)):  # also a `TimeoutError` of the driver
            return False
    for original in map(_original, links):
        if isinstance(original, sqlite3.Error):
            return True
        if (number := _number(original)) is not None:
            return number > 0 and not 2000 <= number < 3000  # codes of the MySQL client
    return any(
        isinstance(link, (TypeError, ValueError, OverflowError))
        or (isinstance(link, StatementError) and not isinstance(link, DBAPIError))
        or type(link).__name__ in _BEFORE_SENDING
        for link in links
    )


def _original(error: BaseException) -> BaseException:
    """The driver's error inside an SQLAlchemy error."""
    from sqlalchemy.exc import StatementError

    found = error.orig if isinstance(error, StatementError) else None
    return error if found is None else found


def _class_of(error: BaseException) -> ErrorClass | None:
    from sqlalchemy import exc

    original = _original(error)
    if isinstance(original, sqlite3.Error):
        return class_of_sqlite(original)
    if (number := _number(original)) is not None:
        return _MYSQL.get(number, _P)
    if isinstance(error, exc.TimeoutError):  # of the pool
        return _T
    if isinstance(error, exc.DBAPIError):
        if error.connection_invalidated:
            return _T
        if isinstance(error, exc.OperationalError):
            return None
        return _P  # the driver refuses a value
    if isinstance(error, (exc.StatementError, TypeError, ValueError, OverflowError)):
        return _P  # a value that cannot be bound, by SQLAlchemy or by its driver
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


# -- SQLite ----------------------------------------------------------------------------------------


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
