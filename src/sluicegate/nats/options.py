"""Connection options for NATS, checked before opening.

1. Options of nats-py pass through under its own names: logins, TLS, the name of the connection.
   Options that Sluicegate sets itself are refused, with the reason.
2. Values of passed options are never shown, and addresses only without the part before `@`, since
   they may contain secrets.
3. A `tls` that is a function is called where the connection is made, so that it can be pickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from .._core import addresses, checks
from .._core.addresses import Options
from .._core.errors import ConfigError
from .._core.extras import need

_SERVER = re.compile(
    r"(?:(?P<scheme>nats|tls|ws|wss)://)?(?:[^\s/@]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s,/:@\[\]]+)(?::(?P<port>\d{1,5}))?/?"
)
_SCHEMES = ("nats", "tls", "ws", "wss")
_AGAIN = "a lost connection is restored without a time limit"
_OWN = "Sluicegate reports the events of the connection"
_OWNED = {
    "allow_reconnect": _AGAIN,
    "closed_cb": _OWN,
    "connect_timeout": "use connect_timeout=...",
    "disconnected_cb": _OWN,
    "discovered_server_cb": _OWN,
    "error_cb": _OWN,
    "flush_timeout": "nothing waits for it",
    "flusher_queue_size": "nothing waits for it",
    "lame_duck_mode_cb": _OWN,
    "max_reconnect_attempts": _AGAIN,
    "pedantic": "it slows down every message",
    "pending_size": "nothing is buffered while there is no connection",
    "reconnected_cb": _OWN,
    "servers": "use servers=...",
    "skip_subject_validation": "a subject with a newline could hold commands",
    "verbose": "it slows down every message",
}
_CALLED_HERE = "tls"
RECONNECT_WAIT = 0.5
"""Seconds between two attempts to reconnect to the same server."""
PING_INTERVAL, PINGS = 5.0, 2
"""Interval of pings in seconds, and maximum number of unanswered ones: a silent connection is
dropped with the next one, after 15 s.
"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NatsOptions:
    """Options of a connection to NATS. Times are in seconds."""

    servers: tuple[str, ...]
    connect_timeout: float
    client: Options

    @classmethod
    def of(
        cls, *, servers: object, connect_timeout: object, client: Mapping[str, object], of: str
    ) -> NatsOptions:
        """Check the arguments. Raises `ConfigError`, and `MissingExtra` without nats-py.

        Args:
            servers: the address of a server, `nats://host:4222` or `host:4222`; several of these
                separated by commas, or a list of them. An address may contain `user:password@` or
                `token@`.
            connect_timeout: time limit in seconds for each attempt to reach a server.
            client: options of nats-py's `connect`, by their names.
            of: the owner of the options, for messages.
        """
        need("nats", "nats", of)
        from .client import CONNECT_OPTIONS

        for name in client:
            if name in _OWNED:
                raise ConfigError(f"{name}=...: is set by Sluicegate: {_OWNED[name]}")
            if name not in CONNECT_OPTIONS:
                raise ConfigError(f"{name}=...: is not an option of {of}, nor of nats-py's connect")
        return cls(
            servers=_servers(servers),
            connect_timeout=checks.seconds(
                "connect_timeout", connect_timeout, usual=checks.LONG_TIMEOUT
            ),
            client=Options(client),
        )

    @property
    def place(self) -> str:
        """The addresses, for messages."""
        return ", ".join(map(_shown, self.servers))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of nats-py's `connect`; calls a `tls` that is a function."""
        given = dict(self.client)
        if callable(make := given.get(_CALLED_HERE)):
            given[_CALLED_HERE] = make()
        return {
            "name": "sluicegate",
            "ping_interval": PING_INTERVAL,
            "max_outstanding_pings": PINGS,
            "reconnect_time_wait": RECONNECT_WAIT,
            **given,
            "servers": list(self.servers),
            "connect_timeout": self.connect_timeout,
            # a message that cannot be sent is an error, and is not sent later
            "pending_size": -1,
        }

    def __repr__(self) -> str:
        return f"NatsOptions(servers={self.place!r})"


def _servers(value: object) -> tuple[str, ...]:
    rule = 'must be "nats://host:4222" or "host:4222", several of these separated by commas, or a list of them'
    if value is None or value in ("", [], ()):
        raise checks.bad("servers", value, f"{rule}; {addresses.UNSET}")
    given = cast("object", value.split(",") if isinstance(value, str) else value)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise checks.bad("servers", type(value).__name__, rule)
    listed = cast("Sequence[object]", given)
    servers = [each.strip() if isinstance(each, str) else "" for each in listed]
    schemes: set[bool] = set()
    for server in servers:
        found = _SERVER.fullmatch(server)
        # a login without a scheme behind a comma: perhaps the rest of a password with a comma
        is_doubtful = isinstance(value, str) and len(servers) > 1 and "@" in server
        if found is None or (is_doubtful and "://" not in server):
            raise ConfigError(f"servers={addresses.shown(value)}: {rule}")
        address = server if "://" in server else f"nats://{server}"
        addresses.split("servers", address, _SCHEMES, rule)
        schemes.add(found["scheme"] in {"ws", "wss"})
    if len(schemes) > 1:
        raise ConfigError(
            f"servers={addresses.shown(value)}: must be all of nats:// and tls://, or all of ws:// and wss://"
        )
    return tuple(servers)


def _shown(server: str) -> str:
    """Return the address without the login."""
    parts = urlsplit(server if "://" in server else f"nats://{server}")
    shown = addresses.place(parts)
    return shown if "://" in server else shown.removeprefix("nats://")
