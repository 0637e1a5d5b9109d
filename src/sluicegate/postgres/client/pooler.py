"""Errors that a pooler in front of PostgreSQL raises itself. Pure.

PgBouncer uses one code (08P01) and no routine for nearly all of them, so they are recognised by
their texts, which are not translated. They include the server's own texts if it refuses PgBouncer's
login. None of them is about a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import ErrorClass

if TYPE_CHECKING:
    from collections.abc import Iterable

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
