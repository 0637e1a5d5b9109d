"""What PostgreSQL's errors mean: their class, whether an item is to blame, and which row the server
points at.

1. A server's error is judged by its SQLSTATE, and a missing privilege (42501) also by the server's
   routine that reported it: row-level security and a trigger use the same code for one row. A code
   that is not listed is permanent: the server has understood and refused.
2. Errors around one of these are looked through by their `__cause__`; one of our own errors speaks
   for itself.
3. A server that is shutting down is unavailable. A login, a right, a table, a column or space on
   the disk that is missing is refused: both push back instead of spilling good rows into dead
   letters.
4. An error of one row is shown in logs by its type, its SQLSTATE and the names it gives, never by
   its message: that may quote the row.
"""

from __future__ import annotations

import errno
import re
import socket
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.causes import caused, causes
from ..._core.errors import (
    ErrorClass,
    PermanentError,
    SinkError,
    TransientError,
    UnknownOutcomeError,
    classify,
)
from ..._core.told import for_log, text_of

if TYPE_CHECKING:
    from collections.abc import Container

    from asyncpg.pool import PoolConnectionProxy

_P, _T, _U, _R = (
    ErrorClass.PERMANENT,
    ErrorClass.TRANSIENT,
    ErrorClass.UNAVAILABLE,
    ErrorClass.REFUSED,
)
_STATES = {
    "08000": _U,
    "08001": _U,
    "08003": _T,  # what asyncpg raises when a connection breaks during a statement
    "08004": _U,
    "08006": _U,
    "08007": ErrorClass.UNKNOWN,
    "2200H": _R,  # a sequence has no number left
    "25006": _R,  # read-only: a standby after a failover
    "25P02": _T,
    "25P03": _T,
    "25P04": _T,
    "26000": _T,  # the session lost its prepared statements: a pooler
    "3D000": _R,
    "3F000": _R,
    "40003": ErrorClass.UNKNOWN,
    "42703": _R,
    "42P01": _R,
    "42P05": _T,  # as 26000
    "53000": _T,
    "53100": _R,  # disk full
    "53200": _T,  # out of memory
    "53300": ErrorClass.THROTTLE,  # too many connections
    "53400": _T,
    "55006": _T,
    "55P03": _T,  # lock not available
    "57014": _T,  # cancelled by a statement timeout
    "57P01": _U,
    "57P02": _U,
    "57P03": _U,
    "57P04": _U,
    "57P05": _T,
    "58000": _T,
    "58030": _T,
    "XX001": _R,
    "XX002": _R,  # a corrupted table or index
}
_FAMILIES = {"28": _R, "40": _T}
_ITEM_FAMILIES = frozenset({"21", "22", "23", "44", "54", "P0"})
"""Data, constraint, view check, too large for an index, raised by a trigger: errors that one row
can cause.
"""
_PERHAPS_ITEMS = frozenset({"3F000", "42703", "42P01"})
"""Listed, and yet raised by a trigger for one row now and then: a statement that it puts together
names what is not there.
"""
OF_ALL = tuple(sorted(_STATES.keys() - _PERHAPS_ITEMS))
"""States that no row causes."""
OF_ALL_FAMILIES = ("08", "25", "28", "40", "53", "57", "58")
NO_PRIVILEGE = "42501"
NAME_TOO_LONG = "42622"
"""A value that a column of type `name` does not hold; the only one of its family that is data."""
LOCK_NOT_AVAILABLE = "55P03"
_PRIVILEGE_ROUTINES = (
    "aclcheck_error",
    "check_enable_rls",
    "InitTempTableNamespace",
    "pgfdw_report",
)
"""Routines of the server (their names begin so) that report what a role lacks; row-level security
and RAISE have others.
"""
NOT_NULL = "23502"
_STALE = frozenset({"26000", "42P05"})
_FATAL = frozenset({"FATAL", "PANIC"})
_NOT_THERE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ENOENT}
)
_LOST = frozenset({"08000", "08003", "08006", "57P01", "57P02", "57P04", "57P05", "25P03", "25P04"})


def classify_postgres(error: BaseException) -> ErrorClass | None:
    """The class of an error of PostgreSQL or of asyncpg, by its SQLSTATE; `None` for one that
    neither of them raised.

    A missing table, column, schema or database, a refused login, a read-only server and a full disk
    are `REFUSED`. 42501 is so only where the server names a routine that checks privileges:
    row-level security and triggers refuse single rows by the same code. Looks through `__cause__`.
    Errors of Penstock keep their own class. Does not suspend, and does not load asyncpg.
    """
    for link in causes(error):
        own = classify(link)
        if own is not ErrorClass.UNLISTED:
            return own
        answer = _class_of(link)
        if answer is not None:
            return answer
    return None


def _class_of(error: BaseException) -> ErrorClass | None:
    state = sqlstate(error)
    if state is not None:
        if type(error).__name__ == "InvalidCachedStatementError":
            # the table was altered under a prepared statement; the next try prepares it
            # again
            return _T
        if state == NO_PRIVILEGE:
            return _R if _lacks_privilege(error) else _P
        if state[:2] == "08" and _is_fatal(error):
            return _STATES.get(
                state, _T
            )  # a pooler gives 08P01 to whatever keeps it from serving a client
        return _STATES.get(state) or _FAMILIES.get(state[:2], _P)
    if isinstance(error, OSError):
        return _class_of_os_error(error)
    if isinstance(error, EOFError):
        return _T
    return _class_of_interface_error(error)


def _class_of_os_error(error: OSError) -> ErrorClass:
    absent = (
        isinstance(error, (ConnectionRefusedError, socket.gaierror)) or error.errno in _NOT_THERE
    )
    return _U if absent else _T


def _class_of_interface_error(error: BaseException) -> ErrorClass | None:
    if "asyncpg" not in sys.modules:
        return None
    from asyncpg import exceptions  # an optional dependency, loaded by whoever raised its error

    if isinstance(error, exceptions.TargetServerAttributeNotMatched):
        return _U
    if isinstance(
        error, (exceptions.ClientConfigurationError, exceptions.UnsupportedServerFeatureError)
    ):
        return _P
    if isinstance(error, exceptions.OutdatedSchemaCacheError) or _is_refused_at_rest(error):
        return _T
    if isinstance(error, exceptions.InterfaceError) and re.search(r"clos(ed|ing)", str(error)):
        return _T
    return None


def sqlstate(error: BaseException) -> str | None:
    """The five characters that PostgreSQL gives to every error; `None` for other errors."""
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) and len(state) == 5 else None


def is_from_server(error: BaseException) -> bool:
    """Whether the server itself said so; asyncpg raises some of the same classes before it sends
    anything.
    """
    return sqlstate(error) is not None and getattr(error, "severity", None) is not None


def _is_fatal(error: BaseException) -> bool:
    return any(getattr(error, field, None) in _FATAL for field in ("severity_en", "severity"))


def _lacks_privilege(error: BaseException) -> bool:
    routine = getattr(error, "server_source_function", None)
    return _is_fatal(error) or (
        isinstance(routine, str) and routine.startswith(_PRIVILEGE_ROUTINES)
    )


def is_stale(error: BaseException) -> bool:
    """Whether a prepared statement is gone or outdated, so that it has to be prepared again."""
    return sqlstate(error) in _STALE or type(error).__name__ in {
        "InvalidCachedStatementError",
        "OutdatedSchemaCacheError",
    }


def is_lost(error: BaseException) -> bool:
    """Whether the connection broke, so that the statement's fate is not in the error."""
    if (
        isinstance(error, (OSError, EOFError))
        or sqlstate(error) in _LOST
        or (is_from_server(error) and _is_fatal(error))
    ):
        return True
    if is_stale(error):
        return False
    return sqlstate(error) is None and _class_of_interface_error(error) is _T


def _is_refused_at_rest(error: BaseException) -> bool:
    """Whether asyncpg refused to begin because the server had ended the session and the end of the
    connection has not been seen yet.
    """
    return type(error).__name__ == "InternalClientError" and "cannot switch to state" in str(error)


def is_gone(con: PoolConnectionProxy[Any]) -> bool:
    """Whether a connection is closed. One that broke has left its pool's hands already, and says so
    by raising.
    """
    from asyncpg import InterfaceError  # an optional dependency

    try:
        return con.is_closed()
    except InterfaceError:
        return True


def is_about_items(error: BaseException) -> bool:
    """Whether single rows can be at fault, so that the others may be delivered without them."""
    state = sqlstate(error)
    if state is None or not is_from_server(error):
        return True  # raised by asyncpg while it encoded a row: nothing else is left on this side
    if state == NO_PRIVILEGE:
        return not _lacks_privilege(error)
    return state not in OF_ALL and state[:2] not in OF_ALL_FAMILIES


def blames_row(state: str, column: str | None, written: Container[str]) -> bool:
    """Whether an error says by itself that a row is at fault, even where all rows have it.

    A column that the sink does not write, and that may not be NULL, is no row's fault.
    """
    if state == NOT_NULL and column is not None:
        return column in written
    return state in {NO_PRIVILEGE, NAME_TOO_LONG} or (
        state[:2] in _ITEM_FAMILIES and state not in OF_ALL
    )


def is_refusal(error: BaseException) -> bool:
    """Whether an error that is left after rows were tried one by one means that the table takes
    none of them.
    """
    state = sqlstate(error)
    if state in {None, NAME_TOO_LONG} or not is_from_server(error) or is_stale(error):
        return False
    return str(state)[:2] == "42" or _class_of(error) is _R


def copy_row(error: BaseException, table: str, rows: int) -> int | None:
    """The index of the row that the server's context names (`COPY events, line 2`, in any
    language); `None` without one.
    """
    context = getattr(error, "context", None)
    if not isinstance(context, str):
        return None
    found = re.search(rf"^COPY {re.escape(table)}, \D*(\d+)", context, re.MULTILINE)
    if found is None:
        return None
    row = int(found[1]) - 1
    return row if 0 <= row < rows else None


def for_write(error: Exception, *, sealed: bool) -> Exception:
    """What a write raises for an error of the whole batch. `sealed`: the server may already have
    been told to keep the rows.
    """
    if is_lost(error):
        if sealed:
            return _made(
                UnknownOutcomeError,
                "no answer, and the rows had been handed over, so they may be stored",
                error,
            )
        return _made(
            TransientError,
            "the connection was lost before all rows were handed over, so nothing is stored",
            error,
        )
    if sealed and type(error).__name__ == "OutdatedSchemaCacheError":
        return _made(
            UnknownOutcomeError,
            "the rows that the server returned cannot be read, and may be stored",
            error,
        )
    if classify_postgres(error) is ErrorClass.UNKNOWN:
        return _made(
            UnknownOutcomeError, "the server cannot say whether the rows are stored", error
        )
    return error


SinkErrorT = TypeVar("SinkErrorT", bound=SinkError)


def _made(kind: type[SinkErrorT], text: str, error: BaseException) -> SinkErrorT:
    made = kind(f"{text} ({text_of(error)})")
    made.summary = f"{text} ({for_log(error)})"
    return caused(made, error)


def shown(error: BaseException) -> str:
    """An error's type, its SQLSTATE and the names it gives: what a log may show of it."""
    fields = ("table_name", "column_name", "constraint_name", "data_type_name")
    names = [
        f"{field.removesuffix('_name')} {value!r}"
        for field in fields
        if isinstance(value := getattr(error, field, None), str)
    ]
    state = sqlstate(error)
    return ", ".join(
        [type(error).__name__, *([] if state is None else [f"SQLSTATE {state}"]), *names]
    )


def message_of(error: BaseException) -> str:
    """The server's message without its DETAIL and HINT; of another error its text."""
    message = getattr(error, "message", None)
    return message if isinstance(message, str) else text_of(error) or type(error).__name__


def for_item(error: BaseException) -> PermanentError:
    """The error of one item, which is refused while its neighbours are delivered."""
    made = PermanentError(f"{type(error).__name__}: {text_of(error)}")
    made.summary = shown(error)
    return caused(made, error)
