"""The connections of a sink to Redis: their options, and exchanges of commands and replies.

1. redis-py retries failed commands by itself. A repeated `XADD` or `RPUSH` stores a second entry,
   so its retries are disabled: `Retry` decides, and knows which items may already be stored.
2. redis-py packs the commands and parses the replies, but its pipeline is not used: it discards all
   replies if the connection is lost after some of them, sends the commands again if the client has
   retries, and quotes items in its errors.
3. An error reply of Redis is a value, and the replies after it are read as well. Replies of a
   master behind Sentinel are read like those of any other server; redis-py's own method would close
   the connection at the first `READONLY`.
4. A connection with an outstanding reply is closed, never reused.
5. A URL may contain a password, so it is shown without its user and its query.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .._core import addresses, checks
from .._core.addresses import Options
from .._core.classify import caused
from .._core.clock import LOOP_CLOCK
from .._core.errors import ConfigError, TimedOutError, UnavailableError, UnknownOutcomeError
from .._core.extras import need
from .._core.runtime.threads import close_within
from .._core.text import text_of
from .commands import LONGEST
from .refusals import DROPS, code_of, connecting_error, ends_connection, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_NO_LIMIT = re.compile(rb"^maxmemory:0\r?$", re.MULTILINE)
_EVICTS = re.compile(rb"^maxmemory_policy:(allkeys-\w+)", re.MULTILINE)
_LONGEST = b"proto-max-bulk-len"
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
"""The limit of redis-py's pool. The sink enforces its own, which lost connections do not reduce."""


class RedisConnections:
    """The connections of an open sink. Used in one event loop."""

    def __init__(self, client: Any, options: RedisOptions) -> None:
        from redis.asyncio.connection import AbstractConnection
        from redis.exceptions import (
            AuthenticationError,
            AuthorizationError,
            BusyLoadingError,
            RedisError,
            ResponseError,
        )

        self._client = client
        self._pool = client.connection_pool
        self._options = options
        size = options.pool_size
        self._room = nullcontext() if size is None else asyncio.Semaphore(size)
        self._read: Callable[..., Any] = AbstractConnection.read_response
        self._refusals = (
            ResponseError,
            AuthenticationError,
            AuthorizationError,
            BusyLoadingError,
        )
        self._losses = (RedisError, OSError, EOFError)
        self.longest = LONGEST
        """The most bytes of a value."""

    @property
    def place(self) -> str:
        """The server's address in messages."""
        return self._options.place

    async def check(self) -> None:
        """Connect, wait for a reply, and read the limit of a value, if the user may read it.
        Suspends; raises the sink's errors.
        """
        answer = await self._ask(b"PING")
        if isinstance(answer, BaseException) and code_of(answer) != "NOPERM":
            raise refusal(answer, self._options.place) from answer
        told: Any = await self._ask(b"CONFIG", b"GET", _LONGEST)
        if isinstance(told, Mapping):
            self.longest = int(cast("Mapping[bytes, bytes]", told).get(_LONGEST, LONGEST))
        elif isinstance(told, list) and len(cast("list[bytes]", told)) == 2:
            self.longest = int(cast("list[bytes]", told)[1])

    async def eviction_policy(self) -> str | None:
        """Return the policy by which the server removes any keys when its memory is full; `None` if
        it removes none, or does not say. Suspends; raises the sink's errors.
        """
        told = await self._ask(b"INFO", b"memory")
        if not isinstance(told, bytes):
            return None
        if _NO_LIMIT.search(told) or (found := _EVICTS.search(told)) is None:
            return None
        return found[1].decode()

    async def _ask(self, *command: bytes) -> object:
        """The reply to a command that changes nothing."""
        answers: list[object] = []
        try:
            await self.exchange([command], lambda _, answer: answers.append(answer))
        except UnknownOutcomeError as error:
            raise caused(UnavailableError(str(error)), error) from error
        return answers[0]

    async def exchange(
        self, commands: Sequence[Sequence[bytes]], take: Callable[[int, object], None]
    ) -> None:
        """Send commands, and pass each reply on with the number of its command.

        Suspends. Raises `UnavailableError` or `RefusedError` if no connection can be opened: nothing
        was sent. Raises `TimedOutError` after `timeout`, and `UnknownOutcomeError` if the connection
        is lost: commands without a reply may have been executed.
        """
        async with self._room:
            connection = await self._connect()
            is_reusable = False
            try:
                is_reusable = await self._exchange(connection, commands, take)
            finally:
                if not is_reusable:
                    await connection.disconnect(nowait=True)
                await self._pool.release(connection)

    async def _exchange(
        self,
        connection: Any,
        commands: Sequence[Sequence[bytes]],
        take: Callable[[int, object], None],
    ) -> bool:
        """Return whether another exchange may use the connection."""
        is_reusable, options = True, self._options
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + options.timeout):
                data = connection.pack_commands(commands)
                await connection.send_packed_command(data, check_health=False)
                for number in range(len(commands)):
                    answer = await self._answer(connection)
                    if isinstance(answer, BaseException) and (
                        code_of(answer) in DROPS or ends_connection(answer)
                    ):
                        is_reusable = False
                    take(number, answer)
        except TimeoutError as error:
            told = f"{options.place} has not replied within {options.timeout:g} s (timeout)"
            raise TimedOutError(told) from error
        except self._losses as error:
            told = f"the connection to {options.place} was lost before the reply: {text_of(error)}"
            raise UnknownOutcomeError(told) from error
        return is_reusable

    async def _answer(self, connection: Any) -> object:
        try:
            return await self._read(connection, disable_decoding=True, disconnect_on_error=False)
        except self._refusals as error:
            return error

    async def _connect(self) -> Any:
        options = self._options
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + options.timeout):
                return await self._pool.get_connection()
        except TimeoutError as error:
            told = f"{options.place} has not accepted a connection within {options.timeout:g} s"
            raise UnavailableError(f"{told} (timeout)") from error
        except Exception as error:
            raise connecting_error(error, options.place) from error

    async def close(self) -> None:
        """Close all connections; suspends for a bounded time."""
        until = LOOP_CLOCK.now() + close_within(self._options.timeout)
        with suppress(Exception):  # open connections end with the process
            async with LOOP_CLOCK.timeout_at(until):
                await self._client.aclose()


# -- options ----------------------------------------------------------------------------------------


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

    @classmethod
    def of(
        cls,
        *,
        url: object,
        client: Callable[[], Any] | None,
        client_options: Mapping[str, Any] | None,
        pool_size: int | None,
        timeout: object,
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
        place = "" if url is None else _check_url(url)
        return cls(
            url=cast("str | None", url),
            place="the client of a function" if url is None else place,
            client=client,
            client_options=_check_options(client_options),
            pool_size=size or (POOL_SIZE if client is None else None),
            timeout=checks.seconds("timeout", timeout, usual=checks.LONG_TIMEOUT),
        )

    async def make(self) -> Any:
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


def _check_url(url: object) -> str:
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


def _check_options(options: Mapping[str, Any] | None) -> Options:
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
