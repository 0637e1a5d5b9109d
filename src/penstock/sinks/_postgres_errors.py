"""What PostgreSQL's errors mean: their class, whether an item is to blame, and which row the server points at.

1. A server's error is judged by its SQLSTATE alone. A code that is not listed is permanent: the server has understood and refused.
2. Errors around one of these are looked through by their `__cause__`; one of our own errors speaks for itself.
3. What says "the server cannot take this from anybody now" (shutting down, read-only after a failover) is unavailable, so it pushes back
   instead of spilling good rows into dead letters.
"""

from __future__ import annotations

import errno
import re
import socket
import sys
from typing import TYPE_CHECKING, Any

from .._core.errors import (
    ErrorClass,
    PermanentError,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    classify,
)
from ._causes import caused, causes

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

_P, _T, _U = ErrorClass.PERMANENT, ErrorClass.TRANSIENT, ErrorClass.UNAVAILABLE
_STATES = {
    "08000": _U,
    "08001": _U,
    "08003": _T,  # what asyncpg raises when a connection breaks during a statement
    "08004": _U,
    "08006": _U,
    "08007": ErrorClass.UNKNOWN,
    "25006": _U,  # read-only: a standby after a failover
    "25P03": _T,
    "25P04": _T,
    "40003": ErrorClass.UNKNOWN,
    "53000": _T,
    "53100": _T,  # disk full
    "53200": _T,  # out of memory
    "53300": ErrorClass.THROTTLE,  # too many connections
    "53400": _T,
    "55006": _T,
    "55P03": _T,  # lock not available
    "57014": _T,  # cancelled by a statement timeout
    "57P01": _U,
    "57P02": _U,
    "57P03": _U,
    "57P05": _T,
    "58000": _T,
    "58030": _T,
}
_FAMILIES = {"40": _T}
_ITEM_FAMILIES = frozenset({"21", "22", "23", "44", "54", "P0"})
"""Data, constraint, view check, too large for an index, raised by a trigger: errors that one row can cause."""
_NOT_THERE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ENOENT})
_LOST = frozenset({"08000", "08003", "08006", "57P01", "57P02", "57P05", "25P03", "25P04"})


def classify_postgres(error: BaseException) -> ErrorClass | None:
    """The class of an error of PostgreSQL or of asyncpg, by its SQLSTATE; `None` for one that neither of them raised.

    Looks through `__cause__`. Errors of Penstock keep their own class. Does not suspend, and does not load asyncpg.
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
            return _T  # the table was altered under a prepared statement; the next try prepares it again
        return _STATES.get(state) or _FAMILIES.get(state[:2], _P)
    if isinstance(error, OSError):
        return _class_of_os_error(error)
    if isinstance(error, EOFError):
        return _T
    return _class_of_interface_error(error)


def _class_of_os_error(error: OSError) -> ErrorClass:
    absent = isinstance(error, (ConnectionRefusedError, socket.gaierror)) or error.errno in _NOT_THERE
    return _U if absent else _T


def _class_of_interface_error(error: BaseException) -> ErrorClass | None:
    if "asyncpg" not in sys.modules:
        return None
    from asyncpg import exceptions  # an optional dependency, loaded by whoever raised its error

    if isinstance(error, exceptions.TargetServerAttributeNotMatched):
        return _U
    if isinstance(error, (exceptions.ClientConfigurationError, exceptions.UnsupportedServerFeatureError)):
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
    """Whether the server itself said so; asyncpg raises some of the same classes before it sends anything."""
    return sqlstate(error) is not None and getattr(error, "severity", None) is not None


def is_lost(error: BaseException) -> bool:
    """Whether the connection broke, or nobody waited for its answer, so that the statement's fate is not in the error."""
    if isinstance(error, (OSError, EOFError)) or sqlstate(error) in _LOST:
        return True
    return sqlstate(error) is None and _class_of_interface_error(error) is _T


def _is_refused_at_rest(error: BaseException) -> bool:
    """Whether asyncpg refused to begin because the server had ended the session and the end of the connection has not been seen yet."""
    return type(error).__name__ == "InternalClientError" and "cannot switch to state" in str(error)


def is_gone(con: PoolConnectionProxy[Any]) -> bool:
    """Whether a connection is closed. One that broke has left its pool's hands already, and says so by raising."""
    from asyncpg import InterfaceError  # an optional dependency

    try:
        return con.is_closed()
    except InterfaceError:
        return True


def is_about_items(error: BaseException) -> bool:
    """Whether single items can be to blame, so that the others may be delivered without them."""
    state = sqlstate(error)
    if is_from_server(error):
        return state is not None and state[:2] in _ITEM_FAMILIES
    return True  # raised by asyncpg while it encoded a row: nothing else is left on this side


def copy_row(error: BaseException, table: str, rows: int) -> int | None:
    """The index of the row that the server's context names (`COPY events, line 2`, in any language); `None` without one."""
    context = getattr(error, "context", None)
    if not isinstance(context, str):
        return None
    found = re.search(rf"^COPY {re.escape(table)}, \D*(\d+)", context, re.MULTILINE)
    if found is None:
        return None
    row = int(found[1]) - 1
    return row if 0 <= row < rows else None


def for_write(error: Exception, *, sealed: bool) -> Exception:
    """What a write raises for an error of the whole batch. `sealed`: the server may already have been told to keep the rows."""
    if is_lost(error):
        if sealed:
            return caused(
                UnknownOutcomeError(f"no answer, and the rows had been handed over, so they may be stored ({error})"),
                error,
            )
        return caused(
            TransientError(f"the connection was lost before all rows were handed over, so nothing is stored ({error})"),
            error,
        )
    if classify_postgres(error) is ErrorClass.UNKNOWN:
        return caused(UnknownOutcomeError(f"the server cannot say whether the rows are stored ({error})"), error)
    return error


def for_connecting(error: Exception, place: str) -> Exception:
    """What is raised where no connection was to be had, so that nothing has been written."""
    if isinstance(error, TimeoutError) or classify_postgres(error) in {_T, _U}:
        return caused(UnavailableError(f"no connection to {place}: {str(error) or type(error).__name__}"), error)
    if classify_postgres(error) is ErrorClass.THROTTLE:
        return caused(ThrottledError(f"no connection to {place}: {error}"), error)
    return error


def for_item(error: BaseException) -> PermanentError:
    """The error of one item, which is refused while its neighbours are delivered."""
    return caused(PermanentError(f"{type(error).__name__}: {error}"), error)
