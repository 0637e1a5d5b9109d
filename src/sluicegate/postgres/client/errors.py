"""Classification of PostgreSQL's errors: their class, whether an item is the cause, and which row.

1. A server's error is classified by its SQLSTATE, and a missing privilege (42501) also by the
   server's routine that reported it: row-level security and triggers use the same code for one row.
   An unlisted code is permanent: the server has understood and refused.
2. The `__cause__` chain of an error is searched; an error of Sluicegate keeps its own class.
3. A server that is shutting down is unavailable. A missing login, right, table, column or disk
   space is refused. Both cause backpressure instead of sending good rows to dead letters.
4. Logs show an error of one row by its type, its SQLSTATE and the names it gives, never by its
   message, which may quote the row.
5. A pooler in front of the server raises errors too. PgBouncer uses one code (08P01) and no routine
   for nearly all of them, so they are recognised by their texts, which are not translated. They
   include the server's own texts if it refuses PgBouncer's login. None of them is about a row.
"""

from __future__ import annotations

import errno
import re
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.classify import caused, classified_by_cause
from ..._core.errors import (
    ErrorClass,
    PermanentError,
    SinkError,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)
from ..._core.logs import for_log
from ..._core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from asyncpg import Connection
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
    "08003": _T,  # asyncpg raises it when a connection breaks during a statement
    "08004": _U,
    "08006": _U,
    "08007": ErrorClass.UNKNOWN,
    "2200H": _R,  # a sequence is exhausted
    "25006": _R,  # read-only: a standby after a failover
    "25P02": _T,
    "25P03": _T,
    "25P04": _T,
    "26000": _T,  # the session has lost its prepared statements, because of a pooler
    "3D000": _R,
    "3F000": _R,
    "40003": ErrorClass.UNKNOWN,
    "40P01": ErrorClass.DEADLOCK,
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
"""Data, constraint, view check, too large for an index, raised by a trigger: one row's errors."""
_PERHAPS_ITEMS = frozenset({"3F000", "42703", "42P01"})
"""Listed, but a trigger may raise them for one row, by a dynamic statement with a wrong name."""
OF_ALL = tuple(sorted(_STATES.keys() - _PERHAPS_ITEMS))
"""States that are never caused by a row."""
OF_ALL_FAMILIES = ("08", "25", "28", "40", "53", "57", "58")
NO_PRIVILEGE = "42501"
NAME_TOO_LONG = "42622"
"""A value too long for a column of type `name`; the only data error of its family."""
LOCK_NOT_AVAILABLE = "55P03"
_PRIVILEGE_ROUTINES = (
    "aclcheck_error",
    "check_enable_rls",
    "InitTempTableNamespace",
    "pgfdw_report",
)
"""Prefixes of the server's routines that report a missing privilege; row-level security and RAISE
use others.
"""
NOT_NULL = "23502"
_STALE = frozenset({"26000", "42P05"})
_FATAL = frozenset({"FATAL", "PANIC"})
_NOT_THERE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ENOENT}
)
_LOST = frozenset({"08000", "08003", "08006", "57P01", "57P02", "57P04", "57P05", "25P03", "25P04"})

SESSION_TIMEOUTS = frozenset({"25P03", "25P04", "57P05"})
"""The server has ended the session because it took too long: the server itself is available."""
_OF_POOLER: Mapping[ErrorClass | None, type[SinkError]] = {
    _U: UnavailableError,
    ErrorClass.THROTTLE: ThrottledError,
}
SinkErrorT = TypeVar("SinkErrorT", bound=SinkError)
PREPARED = (
    'pass prepared_statements="auto" or False, or let the pooler keep prepared statements '
    "(PgBouncer from 1.21 on: max_prepared_statements)"
)
POOLER = "08P01"
"""PgBouncer's code for anything that prevents it from serving a client."""
_NOT_SENT = (
    "query_wait_timeout",
    "server_login_retry",
    "server login has been failing",
    "server login failed",
    "client_login_timeout",
    "cannot connect to server",
    "server DNS lookup failed",
    "pooler is shutting down",
)
"""No server was assigned to the client, so no statement was forwarded."""
_OUTAGES = (
    *_NOT_SENT,
    "server shutting down",
    "admin forced disconnect",
    "suspend_timeout",
    "pause failed",
    "the database system is",  # starting up, shutting down, in recovery
)
_FULL = (
    "too many clients",
    "too many connections",
    "connection slots are reserved",
    "no more connections allowed",
    "client connections exceeded",
    "bouncer resources exhaustion",
)
_LOGIN = (
    "authentication failed",
    "no such user",
    "login rejected",
    "SSL required",
    "password too long",
    "username too long",
    "empty password",
    "not allowed",
    "no pg_hba.conf entry",
    "not permitted to log in",
    "does not exist",  # a role or a database
)
_REPAIRS = {
    "unsupported startup parameter": "leave the parameter out of the DSN and of its options "
    "(set it by ALTER ROLE ... SET, or in the pooler's connect_query), or name it in the "
    "pooler's ignore_startup_parameters if it may be ignored; statement_timeout= needs "
    'prepared_statements="auto" or False',
    "unsupported options startup parameter": "leave options out of the DSN",
    "statement pooling mode": "set pool_mode = transaction or session for the database in the "
    "pooler: each write is a transaction",
    "no such database": "add the database to the pooler's [databases]",
    "is disabled": "enable the database in the pooler (ENABLE)",
    "prepared statement did not exist": PREPARED,
    "prepared statement name is already in use": PREPARED,
    "bouncer config error": "check the pooler's log: its configuration is wrong",
}
"""The operator's remedy, by a part of the pooler's text."""


def classify_postgres(error: BaseException) -> ErrorClass | None:
    """Classify a PostgreSQL or asyncpg error by its SQLSTATE; `None` for any other error.

    A missing table, column, schema or database, a refused login, a read-only server and a full disk
    are `REFUSED`. 42501 is `REFUSED` only if the server names a routine that checks privileges:
    row-level security and triggers refuse individual rows with the same code. Follows `__cause__`.
    Errors of Sluicegate keep their own class. Does not suspend, and does not load asyncpg.
    """
    return classified_by_cause(error, _class_of)


def _class_of(error: BaseException) -> ErrorClass | None:
    state = sqlstate(error)
    if state is not None:
        if type(error).__name__ == "InvalidCachedStatementError":
            return _T  # the table was altered; the next attempt prepares the statement again
        if state == NO_PRIVILEGE:
            return _R if _lacks_privilege(error) else _P
        if (pooler := pooler_error(error)) is not None:
            return class_of_pooler(message_of(pooler))
        if state[:2] == "08" and _is_fatal(error):
            return _STATES.get(state, _T)
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
    from asyncpg import exceptions  # an optional dependency, already loaded

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
    """Return PostgreSQL's five-character error code; `None` for other errors."""
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) and len(state) == 5 else None


def is_from_server(error: BaseException) -> bool:
    """Return whether the server sent the error; asyncpg itself raises some of these classes too."""
    return sqlstate(error) is not None and getattr(error, "severity", None) is not None


def pooler_error(error: BaseException) -> BaseException | None:
    """Return the error that the pooler itself raised, if this is one.

    The pooler then closes the connection, and asyncpg raises the end of the connection from this
    error.
    """
    for each in (error, error.__cause__):
        if each is not None and sqlstate(each) == POOLER and _is_fatal(each):
            return each
    return None


def _is_fatal(error: BaseException) -> bool:
    return any(getattr(error, field, None) in _FATAL for field in ("severity_en", "severity"))


def _lacks_privilege(error: BaseException) -> bool:
    return _is_fatal(error) or checks_privileges(getattr(error, "server_source_function", None))


def checks_privileges(routine: object) -> bool:
    """Return whether this server routine reports missing privileges instead of a refused row."""
    return isinstance(routine, str) and routine.startswith(_PRIVILEGE_ROUTINES)


def is_stale(error: BaseException) -> bool:
    """Return whether a prepared statement is lost or outdated and must be prepared again."""
    return sqlstate(error) in _STALE or type(error).__name__ in {
        "InvalidCachedStatementError",
        "OutdatedSchemaCacheError",
    }


def has_no_statement(error: BaseException) -> bool:
    """Return whether the server lacks the prepared statement, or already has it."""
    return sqlstate(error) in _STALE and is_from_server(error)


def is_lost(error: BaseException) -> bool:
    """Return whether the connection broke, so that the outcome of the statement is unknown."""
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
    """Return whether asyncpg could not begin because the server has ended the session unnoticed."""
    return type(error).__name__ == "InternalClientError" and "cannot switch to state" in str(error)


def is_gone(con: Connection[Any] | PoolConnectionProxy[Any]) -> bool:
    """Return whether a connection is closed; a broken one has already left its pool, and raises."""
    try:
        return con.is_closed()
    except Exception as error:
        from asyncpg import InterfaceError  # an optional dependency

        if isinstance(error, InterfaceError):
            return True
        raise


def is_about_items(error: BaseException) -> bool:
    """Return whether individual rows can be the cause, so that the others can be delivered."""
    state = sqlstate(error)
    if state is None or not is_from_server(error):
        return True  # asyncpg could not encode a row: the only remaining cause on the client
    if state == NO_PRIVILEGE:
        return not _lacks_privilege(error)
    if state == POOLER:  # a value that the driver encoded with too few bytes
        return not _is_fatal(error)
    return state not in OF_ALL and state[:2] not in OF_ALL_FAMILIES


def blames_row(state: str, column: str | None, written: Container[str]) -> bool:
    """Return whether the error alone proves that a row is the cause, even if all rows have it.

    A NULL in a NOT NULL column that the sink does not write is not caused by a row.
    """
    if state == NOT_NULL and column is not None:
        return column in written
    return state in {NO_PRIVILEGE, NAME_TOO_LONG} or (
        state[:2] in _ITEM_FAMILIES and state not in OF_ALL
    )


def is_refusal(error: BaseException) -> bool:
    """Return whether an error of rows tried singly means that the table accepts no row."""
    state = sqlstate(error)
    if state in {None, NAME_TOO_LONG} or not is_from_server(error) or is_stale(error):
        return False
    return str(state)[:2] == "42" or _class_of(error) is _R


def copy_row(error: BaseException, table: str, rows: int) -> int | None:
    """Return the row in the server's context (`COPY events, line 2`, in any language), if any."""
    context = getattr(error, "context", None)
    if not isinstance(context, str):
        return None
    found = re.search(rf"^COPY {re.escape(table)}, \D*(\d+)", context, re.MULTILINE)
    if found is None:
        return None
    row = int(found[1]) - 1
    return row if 0 <= row < rows else None


def names_column(error: BaseException, table: str) -> bool:
    """Return whether the server's context names a column (`COPY events, line 2, column at`), whose
    value it could not read; constraints and triggers concern a whole row.
    """
    context = getattr(error, "context", None)
    return isinstance(context, str) and bool(
        re.search(rf"^COPY {re.escape(table)}, \D*\d+, ", context, re.MULTILINE)
    )


def for_write(error: Exception, *, sealed: bool) -> Exception:
    """Return the error that a write raises for the whole batch.

    `sealed` means that the rows may be stored. A connection lost before that is an outage, which
    one row may cause. So is one on which the last statement could not begin. A refusal by a pooler
    is returned unchanged.
    """
    sealed = sealed and not _is_refused_at_rest(error)
    pooler = pooler_error(error)
    if pooler is not None and (not sealed or was_not_sent(message_of(pooler))):
        kind = _class_of(error)
        if kind is _R:
            return error
        if kind in _OF_POOLER:
            return _sink_error(
                _OF_POOLER[kind], "the pooler has no server, so nothing is stored", error
            )
        sealed = False
    if is_lost(error):
        if sealed:
            return _sink_error(
                UnknownOutcomeError,
                "no answer, and the rows had been handed over, so they may be stored",
                error,
            )
        text = "the connection was lost before all rows were handed over, so nothing is stored"
        if sqlstate(error) in SESSION_TIMEOUTS:
            return _sink_error(TransientError, text, error)
        return _sink_error(partial(UnavailableError, perhaps_of_item=True), text, error)
    if classify_postgres(error) is ErrorClass.UNKNOWN:
        return _sink_error(
            UnknownOutcomeError, "the server cannot say whether the rows are stored", error
        )
    return error


def _sink_error(kind: Callable[[str], SinkErrorT], text: str, error: BaseException) -> SinkErrorT:
    made = kind(f"{text} ({text_of(error)})")
    return caused(made, error, summary=f"{text} ({for_log(error)})")


def shown(error: BaseException) -> str:
    """Return an error's text for logs: its type, its SQLSTATE and the names in its fields.

    A pooler's own message quotes no row, and is shown completely.
    """
    if (pooler := pooler_error(error)) is not None:
        return f"{type(pooler).__name__}: {message_of(pooler)}"
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
    """Return the server's message without DETAIL and HINT, or the text of any other error."""
    message = getattr(error, "message", None)
    return message if isinstance(message, str) else text_of(error) or type(error).__name__


def for_item(error: BaseException) -> PermanentError:
    """Return the error of one refused item; other items are delivered."""
    made = PermanentError(f"{type(error).__name__}: {text_of(error)}")
    return caused(made, error, summary=shown(error))


def class_of_pooler(text: str) -> ErrorClass:
    """Classify an error raised by the pooler; an unlisted one is transient."""
    if _has_any(text, _FULL):
        return ErrorClass.THROTTLE
    if _has_any(text, _OUTAGES):
        return ErrorClass.UNAVAILABLE
    if _has_any(text, _REPAIRS) or is_login(text):
        return ErrorClass.REFUSED
    return ErrorClass.TRANSIENT


def is_login(text: str) -> bool:
    """Return whether the pooler refused the login."""
    return _has_any(text, _LOGIN) and not _has_any(text, _REPAIRS)


def repair_of_pooler(text: str) -> str | None:
    """Return the operator's remedy, if the text reveals it."""
    return next((repair for part, repair in _REPAIRS.items() if part in text), None)


def was_not_sent(text: str) -> bool:
    """Return whether the statement never reached a server."""
    return _has_any(text, (*_NOT_SENT, *_REPAIRS))


def _has_any(text: str, parts: Iterable[str]) -> bool:
    return any(part in text for part in parts)
