"""A connection to NATS and its events; nats-py prints and logs nothing.

1. Opening tries each server once, and raises the `opening_error` of the first failure; a refused
   login has priority. The time is limited, since nats-py waits forever after a failed TLS
   handshake.
2. Once open, a lost connection is restored without a time limit, with its subscriptions. nats-py
   closes a connection only after some server errors (a payload that is too large, a user
   that is removed): `ConnectionEvents.closed` reports it, and a new connection must be opened.
3. Messages that were published but not yet written when a connection was lost are dropped; it is
   unknown which messages these are. So only messages never passed to `publish` are known not to be
   applied.
4. `publish` does not suspend, and raises `OutboundBufferLimitError` while there is no connection:
   the caller limits the messages in flight.
5. Closing is limited to `CLOSE_SECONDS`; then the socket is closed by force.
6. A silent connection counts as lost after unanswered pings.
7. nats-py converts server errors to lower case, including the subject.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nats import errors as nats

from .._core.clock import LOOP_CLOCK
from .._core.errors import ConfigError, RefusedError, SluicegateError, UnavailableError
from .._core.logs import for_log
from .._core.runtime.threads import close_within
from .client import PatientClient
from .errors import ENABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .options import NatsOptions

CLOSE_SECONDS = 2.0
_STEPS = 4
"""The steps of connecting that take up to `connect_timeout` each: the socket, the server's
greeting, TLS, and the response to the login.
"""
_DENIED = re.compile(
    r"permissions violation for (?P<what>publish with reply of|publish to|subscription to) "
    r'"(?P<subject>(?:[^"\\]|\\.)*)"'
)
_ESCAPED = re.compile(r"\\(.)")
_LOGIN = ("authorization violation", "authentication expired", "authentication revoked")
_FULL_SERVER = ("maximum connections exceeded", "maximum account active connections exceeded")
_UNREACHABLE = (
    nats.NoServersError,
    nats.ConnectionClosedError,
    nats.ConnectionDrainingError,
    nats.ConnectionReconnectingError,
    nats.OutboundBufferLimitError,
    nats.StaleConnectionError,
)


class _NotOpened(Exception):
    """Ends nats-py's opening, which would otherwise never end."""


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEvents:
    """Callbacks for the events of an open connection. They run on its loop and must not raise."""

    lost: Callable[[], None] = _ignore
    """The connection was lost or closed; no more messages are received on it."""
    back: Callable[[], None] = _ignore
    """The connection was restored, with its subscriptions."""
    closed: Callable[[], None] = _ignore
    """The connection is closed for good."""
    denied: Callable[[Denied], None] = _ignore
    """The server has denied and dropped a publish or a subscription."""
    error: Callable[[Exception], None] = _ignore
    """Any other error, for example of an attempt to reconnect."""


async def connect(options: NatsOptions, events: ConnectionEvents | None = None) -> PatientClient:
    """Open a connection. Suspends until a server has accepted the login; a cancellation leaves none
    open.

    Close it by `close`.

    Raises:
        ConfigError: options that nats-py cannot use, such as files of credentials.
        RefusedError: the server refuses the login, or its certificate is not trusted.
        UnavailableError: no server answers.
    """
    events = events or ConnectionEvents()
    client = PatientClient()
    failures: list[Exception] = []
    is_open = False

    async def on_error(error: Exception) -> None:
        if not is_open:
            failures.append(error)
            if len(failures) >= len(options.servers) or isinstance(error, ssl.SSLError):
                raise _NotOpened
            return
        if not client.is_connected:
            client.cut()  # nats-py leaves the socket of a refused login open
        if (denied := denied_by(error)) is not None:
            events.denied(denied)
        else:
            events.error(error)

    async def on_lost() -> None:
        client.forget_unwritten()
        events.lost()

    async def on_back() -> None:
        events.back()

    async def on_closed() -> None:
        events.closed()

    arguments: dict[str, Any] = {
        **options.arguments(),
        "error_cb": on_error,
        "disconnected_cb": on_lost,
        "reconnected_cb": on_back,
        "closed_cb": on_closed,
        "max_reconnect_attempts": -1,
    }
    limit = LOOP_CLOCK.now() + options.connect_timeout * _STEPS * len(options.servers)
    try:
        async with LOOP_CLOCK.timeout_at(limit):
            await client.connect(**arguments)
    except Exception as error:
        client.cut()
        cause = next(filter(is_login, failures), failures[0] if failures else error)
        raise opening_error(cause, options) from cause
    except BaseException:
        client.cut()
        raise
    is_open = True
    return client


async def close(client: PatientClient) -> None:
    """Send written data, then close the connection. Idempotent.

    Suspends for at most `CLOSE_SECONDS`, or for the rest of a consumer's closing. A cancellation
    closes it immediately.
    """
    closing = asyncio.ensure_future(client.close())
    try:
        await asyncio.wait([closing], timeout=close_within(CLOSE_SECONDS))
    finally:
        client.cut()
        if not closing.done():
            closing.cancel()


@dataclass(frozen=True, slots=True)
class Denied:
    """The server has dropped a command because a permission is missing."""

    what: Literal["publish", "subscribe"]
    subject: str
    """In lower case; see the rules."""
    of_reply: bool = False
    """Whether the subject is the reply subject of a publish."""

    @property
    def repair(self) -> str:
        """The operator's remedy."""
        return f"allow the user to {self.what} to {self.subject!r}"


def denied_by(error: BaseException) -> Denied | None:
    """Return the missing permission if nats-py's error is about one; otherwise `None`."""
    found = _DENIED.search(str(error).lower()) if isinstance(error, nats.Error) else None
    if found is None:
        return None
    what = found["what"]
    return Denied(
        "subscribe" if what.startswith("subscription") else "publish",
        _ESCAPED.sub(r"\1", found["subject"]),
        of_reply="reply" in what,
    )


def opening_error(error: Exception, options: NatsOptions) -> Exception:
    """Return the error for a connection that cannot be opened, without values of options."""
    if isinstance(error, SluicegateError):
        return error
    if isinstance(error, ssl.SSLError):
        repair = "trust the certificate (tls=...), or use its name (tls_hostname=...)"
        return RefusedError(f"TLS with {options.place} fails ({error.reason})", repair=repair)
    if is_login(error):
        told = "check the user and its password, token or credentials"
        return RefusedError(f"{options.place} has refused the login", repair=told)
    if _is_unreachable(error):
        return UnavailableError(reason_of(error, options))
    if isinstance(error, nats.Error):
        return UnavailableError(f"{options.place} has refused the connection ({for_log(error)})")
    return ConfigError(f"nats-py cannot use its options ({for_log(error)})")


def is_login(error: BaseException) -> bool:
    """Return whether the server refuses the login or has revoked it."""
    if isinstance(error, nats.AuthorizationError):
        return True
    return isinstance(error, nats.Error) and any(each in str(error).lower() for each in _LOGIN)


def reason_of(error: BaseException, options: NatsOptions) -> str:
    """Return why nothing can be sent or received, as text for operators, without option values."""
    place = options.place
    if is_login(error):
        return f"{place} has refused the login"
    if _is_full_server(error):
        return f"{place} takes no more connections"
    if (denied := denied_by(error)) is not None:
        return f"{place} denies it; {denied.repair}"
    if isinstance(error, nats.NoRespondersError):
        return f"JetStream does not answer at {place}; {ENABLE}"
    if isinstance(error, ssl.SSLError):
        return f"TLS with {place} fails ({error.reason})"
    if _is_unreachable(error):
        return f"no NATS server answers at {place} ({type(error).__name__})"
    return for_log(error)


def _is_full_server(error: BaseException) -> bool:
    return isinstance(error, nats.Error) and any(
        each in str(error).lower() for each in _FULL_SERVER
    )


def _is_unreachable(error: BaseException) -> bool:
    return isinstance(error, (*_UNREACHABLE, nats.TimeoutError, asyncio.TimeoutError, OSError))
