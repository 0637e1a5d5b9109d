"""Errors of connections and refusals of a server, each with the operator's remedy.

The text for logs never contains a server message that may quote a row.
"""

from __future__ import annotations

import ssl

from ..._core.classify import caused
from ..._core.errors import (
    ConfigError,
    ErrorClass,
    RefusedError,
    SinkError,
    SluicegateError,
    ThrottledError,
    UnavailableError,
)
from ..._core.logs import for_log
from ..._core.text import text_of
from .errors import (
    NO_PRIVILEGE,
    PREPARED,
    classify_postgres,
    is_login,
    is_stale,
    message_of,
    pooler_error,
    repair_of_pooler,
    shown,
    sqlstate,
)

FOREIGN = "a pool of your own needs statement_cache_size=0"
_REFUSED_HERE = frozenset({"28000", "28P01", "3D000", "42501"})
_BAD_OPTION = frozenset({"42704", "22023", "55P02"})
"""An unknown setting, a bad value, a setting that a session cannot have."""
_PASSING = frozenset({ErrorClass.TRANSIENT, ErrorClass.DEADLOCK, ErrorClass.UNAVAILABLE})


def refusal(error: Exception, what: str, repair: str) -> RefusedError:
    """Return the `RefusedError` for an error that is not caused by a row."""
    made = RefusedError(f"{what}: {message_of(error)}", repair=repair)
    return caused(made, error, summary=f"{what}: {shown(error)}; to repair: {repair}")


def refused_again(error: RefusedError) -> RefusedError:
    """Return the same refusal as a new instance, for another waiter."""
    message = text_of(error).removesuffix(f"; to repair: {error.repair}")
    made = RefusedError(message, repair=error.repair)
    return caused(made, error.__cause__ or error, summary=error.summary)


def repair_of(error: Exception, place: str) -> str:
    """Return the remedy, by the error's SQLSTATE."""
    state = sqlstate(error) or ""
    if is_stale(error):
        return f"for the pooler at {place}: {PREPARED}; {FOREIGN}"
    if (pooler := pooler_error(error)) is not None:
        return _repair_of_pooler(pooler, place)
    if not state:
        return f"correct the sink's connection options for {place} ({shown(error)})"
    if is_bad_option(error):
        return (
            f"correct or leave out this option, which is in the DSN after ?, or in connect_options "
            f"({message_of(error)}); {place} knows settings of the server only: options of the "
            "client are in connect_options, and the number of connections is pool_size="
        )
    if state[:2] == "28":
        return (
            f"let the role log in at {place}: its password, its LOGIN attribute, and "
            f"pg_hba.conf ({message_of(error)})"
        )
    return {
        "2200H": f"raise the maximum of the sequence at {place} ({message_of(error)})",
        "25006": f"make {place} writable (it is a standby, or read-only by "
        "default_transaction_read_only), or connect to the primary",
        "3D000": f"create the database at {place} ({message_of(error)})",
        NO_PRIVILEGE: f"grant the missing privilege to the sink's role at {place} ({privilege(error)})",
        "53100": f"free disk space at {place}",
        "XX001": f"restore the table's data at {place}: the server found it corrupted",
        "XX002": f"rebuild the table's indexes at {place} (REINDEX): the server found one "
        "corrupted",
    }.get(
        state,
        f"find its cause at {place} ({shown(error)}): the table's definition, its triggers and "
        "rules",
    )


def _repair_of_pooler(error: BaseException, place: str) -> str:
    text = message_of(error)
    if is_login(text):
        return (
            f"let the role log in at the pooler at {place}, and the pooler at its server: "
            f"auth_file, auth_query, the role and the database ({text})"
        )
    return f"for the pooler at {place}: {repair_of_pooler(text) or f'see its log ({text})'}"


def is_bad_option(error: Exception) -> bool:
    """Return whether a login failed because of a setting that the server does not take."""
    return sqlstate(error) in _BAD_OPTION and getattr(error, "severity_en", None) == "FATAL"


def privilege(error: Exception) -> str:
    """Return the server's text for a missing privilege, but never text of a trigger."""
    return message_of(error) if classify_postgres(error) is ErrorClass.REFUSED else shown(error)


def for_connecting(error: Exception, place: str) -> Exception:
    """Return the error for a failed connection.

    Nothing was written, and no item is the cause.
    """
    if isinstance(error, SluicegateError):
        return error
    kind = classify_postgres(error)
    if kind is ErrorClass.THROTTLE:
        return _unsuccessful(ThrottledError, error, place)
    if isinstance(error, TimeoutError) or kind in _PASSING:
        return _unsuccessful(UnavailableError, error, place)
    return refusal(error, f"no connection to {place}", repair_of(error, place))


def for_opening(error: Exception, place: str) -> Exception:
    """Return the error for a failed opening: `ConfigError` for a permanent refusal."""
    if (
        sqlstate(error) in _REFUSED_HERE
        or is_bad_option(error)
        or isinstance(error, ssl.SSLCertVerificationError)
        or (pooler_error(error) is not None and classify_postgres(error) is ErrorClass.REFUSED)
    ):
        made = ConfigError(f"dsn={place!r}: {error}; to repair: {repair_of(error, place)}")
        return caused(made, error)
    return for_connecting(error, place)


def _unsuccessful(kind: type[SinkError], error: Exception, place: str) -> SinkError:
    made = kind(f"no connection to {place}: {text_of(error) or type(error).__name__}")
    told = for_log(error) if pooler_error(error) is None else shown(error)
    return caused(made, error, summary=f"no connection to {place}: {told}")
