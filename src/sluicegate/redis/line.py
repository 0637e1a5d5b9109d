"""Connections of redis-py, used by one write at a time, and exchanges over them.

1. Commands are sent and replies are read without redis-py's pipeline. The pipeline discards all
   replies if the connection is lost after some of them, and may resend the commands.
2. A connection with an outstanding reply is closed, never reused.
3. An error reply of Redis is a value, and the replies after it are read as well. Replies of a
   master behind Sentinel are read like those of any other server; redis-py's own method would close
   the connection at the first `READONLY`.
4. Replies are read while a large command is sent. Redis replies to a value over its limit and
   closes the connection before it has received the value, and a failed send discards the reply.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from .._core.classify import caused
from .._core.clock import LOOP_CLOCK
from .._core.errors import TimedOutError, UnavailableError, UnknownOutcomeError
from .._core.runtime.threads import close_within
from .._core.text import text_of
from .commands import packed
from .refusals import code_of, connecting_error, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from .options import RedisOptions


_NO_LIMIT = re.compile(rb"^maxmemory:0\r?$", re.MULTILINE)
_EVICTS = re.compile(rb"^maxmemory_policy:(allkeys-\w+)", re.MULTILINE)
_AT_ONCE = 1 << 16
"""Bytes that a connection takes without waiting for the server."""


class RedisLine:
    """A connection, used by one write."""

    def __init__(self, connection: Any, options: RedisOptions) -> None:
        from redis.asyncio.connection import AbstractConnection
        from redis.exceptions import (
            AuthenticationError,
            AuthorizationError,
            BusyLoadingError,
            RedisError,
            ResponseError,
        )

        self._connection = connection
        self._read: Callable[..., Any] = partial(AbstractConnection.read_response, connection)
        self._timeout = options.timeout
        self._place = options.place
        self._refusals = (
            ResponseError,
            AuthenticationError,
            AuthorizationError,
            BusyLoadingError,
        )
        self._troubles = (RedisError, OSError, EOFError)
        self._waits = False
        """Whether a reply is outstanding."""
        self._is_spoiled = False

    @property
    def is_reusable(self) -> bool:
        """Whether another write may use the connection."""
        return not (self._waits or self._is_spoiled)

    def spoil(self) -> None:
        """Mark the connection to be closed afterwards."""
        self._is_spoiled = True

    async def renew(self) -> None:
        """Close the connection; the next exchange opens another one."""
        await self._connection.disconnect(nowait=True)

    async def exchange(
        self, commands: Iterable[bytes], count: int, take: Callable[[int, object], None]
    ) -> None:
        """Send `count` commands, and pass each reply on with the number of its command.

        Suspends. Raises `TimedOutError` after `timeout` without a reply, and `UnknownOutcomeError`
        if the connection is lost; commands without a reply may have been executed.
        """
        self._waits = True
        now, heard = LOOP_CLOCK.now, 0.0
        try:
            async with (
                LOOP_CLOCK.timeout_at(now() + self._timeout) as limit,
                self._sending(b"".join(commands)),
            ):
                for number in range(count):
                    if (time := now()) > heard + self._timeout / 10:  # timers are expensive
                        heard = time
                        limit.reschedule(time + self._timeout)
                    take(number, await self._answer())
        except TimeoutError as error:
            told = f"{self._place} has not replied within {self._timeout:g} s (timeout)"
            raise TimedOutError(told) from error
        except self._troubles as error:
            told = f"the connection to {self._place} was lost before the reply: {text_of(error)}"
            raise UnknownOutcomeError(told) from error
        self._waits = False

    @asynccontextmanager
    async def _sending(self, data: bytes) -> AsyncGenerator[None]:
        """Send the data: a large amount while the body reads, the rest before it."""
        send = self._connection.send_packed_command
        if len(data) <= _AT_ONCE:
            await send(data, check_health=False)
            yield
            return
        await self._connection.connect()  # anew, if Redis has closed it after an earlier command
        sending = asyncio.ensure_future(send(data, check_health=False))
        try:
            yield
            await asyncio.wait([sending])
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            if sending.cancelled() or sending.exception() is not None:
                self.spoil()

    async def _answer(self) -> object:
        try:
            return await self._read(disable_decoding=True, disconnect_on_error=False)
        except self._refusals as error:
            return error


class RedisConnections:
    """The connections of an open sink. Used in one event loop."""

    def __init__(self, client: Any, options: RedisOptions) -> None:
        self._client = client
        self._pool = client.connection_pool
        self._options = options
        size = options.pool_size
        self._room = nullcontext() if size is None else asyncio.Semaphore(size)
        self.untrimmed: set[bytes] = set()
        """Lists that cannot be trimmed and have been logged."""

    @property
    def place(self) -> str:
        """The server's address in messages."""
        return self._options.place

    async def check(self) -> None:
        """Connect and wait for a reply. Suspends; raises the sink's errors."""
        answer = await self._asked(b"PING")
        if isinstance(answer, BaseException) and code_of(answer) != "NOPERM":
            raise refusal(answer, self._options.place) from answer

    async def evicts(self) -> str | None:
        """Return the policy by which the server removes any keys when its memory is full; `None` if
        it removes none, or does not say. Suspends; raises the sink's errors.
        """
        told = await self._asked(b"INFO", b"memory")
        if not isinstance(told, bytes):
            return None
        if _NO_LIMIT.search(told) or (found := _EVICTS.search(told)) is None:
            return None
        return found[1].decode()

    async def _asked(self, *command: bytes) -> object:
        """The reply to a command that changes nothing."""
        answers: list[object] = []
        async with self.lend() as line:
            try:
                await line.exchange([packed(*command)], 1, lambda _, answer: answers.append(answer))
            except UnknownOutcomeError as error:
                raise caused(UnavailableError(str(error)), error) from error
        return answers[0]

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[RedisLine]:
        """Lend a connection. Suspends until one is free; raises `UnavailableError` or
        `RefusedError` if none can be opened.
        """
        async with self._room:
            connection = await self._connected()
            line = RedisLine(connection, self._options)
            try:
                yield line
            finally:
                if not line.is_reusable:
                    await connection.disconnect(nowait=True)
                await self._pool.release(connection)

    async def _connected(self) -> Any:
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
        until = LOOP_CLOCK.now() + close_within(self._options.close_timeout)
        with suppress(Exception):  # open connections end with the process
            async with LOOP_CLOCK.timeout_at(until):
                await self._client.aclose()
