"""A connection to NATS, with its news; nothing is printed or logged by nats-py.

1. Opening tries each server once, and raises what `opening_error` makes of the first failure, a
   refused login before others. It is bounded: nats-py waits for ever after a failed TLS handshake.
2. Once open, a lost connection is made again for ever, and subscriptions with it. nats-py gives a
   connection up only for some errors of the server (a payload that is too large, a user that is
   removed): `ConnectionNews.closed` tells it, and another one must be opened.
3. What was published and not yet written when a connection was lost is dropped; nothing tells which
   messages these are. So only what was never handed to `publish` is known not to be applied.
4. `publish` does not suspend, and raises `OutboundBufferLimitError` while there is no connection:
   bounds on what is in flight are the caller's.
5. Closing is bounded: after `CLOSE_SECONDS` the socket is cut.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK
from .errors import denied_by, is_login, opening_error
from .insides import PatientClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import Denied
    from .options import NatsOptions

CLOSE_SECONDS = 2.0
_STEPS = 4
"""Those of a connection that take up to `connect_timeout` each: the socket, the server's greeting,
TLS, and the answer to the login.
"""


class _NotOpened(Exception):
    """Ends nats-py's opening, which would go on for ever."""


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionNews:
    """Functions for what happens to an open connection. They run on its loop and must not raise."""

    lost: Callable[[], None] = _ignore
    """The connection is lost, or closed; nothing more is received on it."""
    back: Callable[[], None] = _ignore
    """It is made again, with its subscriptions."""
    closed: Callable[[], None] = _ignore
    """It will not be made again."""
    denied: Callable[[Denied], None] = _ignore
    """The server denies a publish or a subscription, which it has dropped."""
    trouble: Callable[[Exception], None] = _ignore
    """Any other error: of a try to connect again, for example."""


async def connect(options: NatsOptions, news: ConnectionNews | None = None) -> PatientClient:
    """Open a connection. Suspends until a server has accepted the login; cancelled, none is open.

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
    """Close it, sending what is written first. Suspends for at most `CLOSE_SECONDS`; idempotent.

    A cancellation cuts it at once.
    """
    closing = asyncio.ensure_future(client.close())
    try:
        await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    finally:
        client.cut()
        if not closing.done():
            closing.cancel()
