"""A connection to NATS and its events; nats-py prints and logs nothing.

1. Opening tries each server once, and raises the `opening_error` of the first failure; a refused
   login has priority. The time is limited, since nats-py waits forever after a failed TLS
   handshake.
2. Once open, a lost connection is restored without a time limit, with its subscriptions. nats-py
   closes a connection only after some errors of the server (a payload that is too large, a user
   that is removed): `ConnectionNews.closed` reports it, and a new connection must be opened.
3. Messages that were published but not yet written when a connection was lost are dropped; it is
   unknown which messages these are. So only messages never passed to `publish` are known not to be
   applied.
4. `publish` does not suspend, and raises `OutboundBufferLimitError` while there is no connection:
   the caller limits the messages in flight.
5. Closing is limited to `CLOSE_SECONDS`; then the socket is closed by force.
6. A silent connection counts as lost after unanswered pings.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK
from ..._core.runtime.threads import close_within
from .errors import denied_by, is_login, opening_error
from .insides import PatientClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import Denied
    from .options import NatsOptions

CLOSE_SECONDS = 2.0
_STEPS = 4
"""The steps of connecting that take up to `connect_timeout` each: the socket, the server's
greeting, TLS, and the answer to the login.
"""


class _NotOpened(Exception):
    """Ends the opening of nats-py, which would otherwise never end."""


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionNews:
    """Callbacks for the events of an open connection. They run on its loop and must not raise."""

    lost: Callable[[], None] = _ignore
    """The connection was lost or closed; no more messages are received on it."""
    back: Callable[[], None] = _ignore
    """The connection was restored, with its subscriptions."""
    closed: Callable[[], None] = _ignore
    """The connection is closed for good."""
    denied: Callable[[Denied], None] = _ignore
    """The server has denied and dropped a publish or a subscription."""
    trouble: Callable[[Exception], None] = _ignore
    """Any other error, for example of an attempt to reconnect."""


async def connect(options: NatsOptions, news: ConnectionNews | None = None) -> PatientClient:
    """Open a connection. Suspends until a server has accepted the login; a cancellation leaves none
    open.

    Close it by `close`.

    Raises:
        ConfigError: options that nats-py cannot use, such as files of credentials.
        RefusedError: the server refuses the login, or its certificate is not trusted.
        UnavailableError: no server answers.
    """
    told = news or ConnectionNews()
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
            told.denied(denied)
        else:
            told.trouble(error)

    async def on_lost() -> None:
        client.forget_unwritten()
        told.lost()

    async def on_back() -> None:
        told.back()

    async def on_closed() -> None:
        told.closed()

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
