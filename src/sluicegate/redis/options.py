"""Access to Redis: a URL with options of redis-py, or a function that returns a client; validated.

1. redis-py retries failed commands by itself. A repeated `XADD` or `RPUSH` stores a second entry,
   so its retries are disabled: `Retry` decides, and knows which items may already be stored.
2. Its own timeouts are disabled, too: the sink has one for each exchange with the server.
3. A URL may contain a password, so it is shown without its user and its query.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .._core import addresses, checks
from .._core.addresses import Options
from .._core.errors import ConfigError
from .._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

POOL_SIZE = 10
_SCHEMES = ("redis", "rediss", "unix")
_RULE = 'must be a URL such as "redis://host:6379/0", "rediss://..." or "unix:///path"'
_LIMIT = "use timeout="
_RETRIES = "a retried command would store a second entry; use Retry()"
_BY_URL = "it is part of the URL"
_OWNED = {
    "auto_close_connection_pool": "the sink closes its connections",
    "connection_pool": "pass a function that returns a client as client=",
    "decode_responses": "the sink decodes replies itself",
    "host": _BY_URL,
    "max_connections": "use pool_size=",
    "port": _BY_URL,
    "retry": _RETRIES,
    "retry_on_error": _RETRIES,
    "retry_on_timeout": _RETRIES,
    "single_connection_client": "use pool_size=",
    "socket_connect_timeout": _LIMIT,
    "socket_timeout": _LIMIT,
    "unix_socket_path": _BY_URL,
}
_UNLIMITED = 2**31 - 1
"""The limit of redis-py's pool. The sink enforces its own limit, which lost connections do not
reduce.
"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RedisOptions:
    """The connections of a sink. Times are seconds."""

    url: str | None
    place: str
    """The server's address in messages, without a password."""
    client: Callable[[], Any] | None
    client_options: Options
    pool_size: int | None
    timeout: float
    close_timeout: float

    @classmethod
    def of(
        cls,
        *,
        url: object,
        client: Callable[[], Any] | None,
        client_options: Mapping[str, Any] | None,
        pool_size: int | None,
        timeout: object,
        close_timeout: object,
    ) -> RedisOptions:
        """Validate the arguments. Raises `ConfigError`, and `MissingExtra` without redis-py."""
        need("redis", "redis", "RedisSink")
        if url is None and client is None:
            raise checks.bad("url", None, f"must be given, or client=; {addresses.UNSET}")
        if url is not None and client is not None:
            raise checks.bad("url", "...", "cannot be combined with client=")
        if client is not None:
            if not callable(cast("object", client)) or not checks.accepts(client, 0):
                rule = "must be a function, async or not, that returns a client"
                raise checks.bad("client", client, rule)
            if client_options:
                raise checks.bad("client_options", "...", "requires a URL: a client has its own")
        size = checks.optional_count("pool_size", pool_size)
        place = "" if url is None else _checked_url(url)
        return cls(
            url=cast("str | None", url),
            place="the client of a function" if url is None else place,
            client=client,
            client_options=_checked_options(client_options),
            pool_size=size or (POOL_SIZE if client is None else None),
            timeout=checks.seconds("timeout", timeout, usual=checks.LONG_TIMEOUT),
            close_timeout=checks.seconds("close_timeout", close_timeout, usual=checks.LONG_TIMEOUT),
        )

    async def made(self) -> Any:
        """Create the client, without connecting. Raises `ConfigError`."""
        if self.client is not None:
            made = self.client()
            if inspect.isawaitable(made):
                made = await made
            if not callable(
                getattr(getattr(made, "connection_pool", None), "get_connection", None)
            ):
                rule = "must return a redis.asyncio.Redis; one for a Redis Cluster is not supported"
                raise checks.bad("client", type(made).__name__, rule)
            return made
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        options: dict[str, Any] = {"protocol": 2, **self.client_options}
        kind = cast("Any", Redis)
        return kind.from_url(
            self.url,
            **options,
            max_connections=_UNLIMITED,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=self.timeout,
        )

    def __repr__(self) -> str:
        return f"RedisOptions({self.place})"


def _checked_url(url: object) -> str:
    """Check the URL; return the form for messages."""
    parts = addresses.split("url", url, _SCHEMES, _RULE)
    if not (parts.hostname or parts.path):
        raise ConfigError(f"url=...: {_RULE}")
    from redis.asyncio.connection import parse_url

    try:
        given = set(parse_url(cast("str", url)))
    except ValueError:  # its message may show the URL
        raise ConfigError(f"url=...: {_RULE}") from None
    given -= {"host", "port", "path", "db", "username", "password", "connection_class"}
    for name in sorted(given):
        if "password" in parts.query and name not in _options():
            raise addresses.unreadable("url", cast("str", url))  # it may be a piece of the password
        _check_option("url", name)
    return addresses.place(parts)


def _checked_options(options: Mapping[str, Any] | None) -> Options:
    if options is not None and not isinstance(cast("object", options), Mapping):
        rule = "must be a mapping of options of redis.asyncio.Redis"
        raise checks.bad("client_options", type(options).__name__, rule)
    for name in options or {}:
        _check_option("client_options", name)
    return Options(options or {})


def _check_option(argument: str, name: str) -> None:
    if (why := _OWNED.get(name)) is not None:
        raise ConfigError(f"{argument} with {name}: is set by Sluicegate: {why}")
    if name not in _options():
        raise ConfigError(f"{argument} with {name}: is not an option of redis.asyncio.Redis")


def _options() -> Collection[str]:
    from redis.asyncio import Redis

    return inspect.signature(Redis).parameters
