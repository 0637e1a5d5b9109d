"""Connections of redis-py, lent to one write at a time, and exchanges over them.

1. Commands and answers go over a connection without redis-py's pipeline: that forgets all answers
   when the connection is lost behind one of them, and may send the commands again.
2. A connection with an answer on its way is closed, never lent again.
3. An answer is an error of Redis as a value: what follows it is read all the same. So the answers of
   a connection to a master of Sentinel are read as those of any other one; its own way of reading
   ends the connection at the first `READONLY`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core.causes import caused
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import TimedOutError, UnavailableError, UnknownOutcomeError
from ..._core.text import text_of
from .commands import packed
from .refusals import code_of, connecting_error, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from .options import RedisOptions


class RedisLine:
    """A connection, for one write."""

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
        """Whether an answer is on its way."""
        self._is_spoiled = False

    @property
    def is_reusable(self) -> bool:
        """Whether another write may have the connection."""
        return not (self._waits or self._is_spoiled)

    def spoil(self) -> None:
        """Have the connection closed afterwards."""
        self._is_spoiled = True

    async def exchange(
        self, commands: Iterable[bytes], count: int, take: Callable[[int, object], None]
    ) -> None:
        """Send `count` commands, and pass on the answer to each, by number.

        Suspends. Raises `TimedOutError` after `timeout` without an answer, and `UnknownOutcomeError`
        for a connection that is lost; the commands without an answer may be executed.
        """
        self._waits = True
        now, heard = LOOP_CLOCK.now, 0.0
        try:
            async with LOOP_CLOCK.timeout_at(now() + self._timeout) as limit:
                await self._connection.send_packed_command(b"".join(commands), check_health=False)
                for number in range(count):
                    if (time := now()) > heard + self._timeout / 10:  # seldom: a timer costs more
                        heard = time
                        limit.reschedule(time + self._timeout)
                    take(number, await self._answer())
        except TimeoutError as error:
            told = f"{self._place} has not answered within {self._timeout:g} s (timeout)"
            raise TimedOutError(told) from error
        except self._troubles as error:
            told = f"the connection to {self._place} was lost on the way: {text_of(error)}"
            raise UnknownOutcomeError(told) from error
        self._waits = False

    async def _answer(self) -> object:
        try:
            return await self._read(disable_decoding=True, disconnect_on_error=False)
        except self._refusals as error:
            return error


class RedisConnections:
    """The connections of an open sink. Used on one loop."""

    def __init__(self, client: Any, options: RedisOptions) -> None:
        self._client = client
        self._pool = client.connection_pool
        self._options = options
        size = options.pool_size
        self._room = nullcontext() if size is None else asyncio.Semaphore(size)
        self.untrimmed: set[bytes] = set()
        """Lists that cannot be trimmed, which the log has told."""

    @property
    def place(self) -> str:
        """The server, for messages."""
        return self._options.place

    async def check(self) -> None:
        """Connect, and ask for an answer. Suspends; raises the sink's errors."""
        answers: list[object] = []
        async with self.lend() as line:
            try:
                await line.exchange([packed(b"PING")], 1, lambda _, answer: answers.append(answer))
            except UnknownOutcomeError as error:
                raise caused(UnavailableError(str(error)), error) from error
        (answer,) = answers
        if isinstance(answer, BaseException) and code_of(answer) != "NOPERM":
            raise refusal(answer, self._options.place) from answer

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[RedisLine]:
        """A connection. Suspends until one is free; raises `UnavailableError` or `RefusedError`
        if none can be made.
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
            told = f"{options.place} has not taken a connection within {options.timeout:g} s"
            raise UnavailableError(f"{told} (timeout)") from error
        except Exception as error:
            raise connecting_error(error, options.place) from error

    async def close(self) -> None:
        """Close all connections; suspends for a bounded time."""
        until = LOOP_CLOCK.now() + self._options.close_timeout
        with suppress(Exception):  # what is still open ends with the process
            async with LOOP_CLOCK.timeout_at(until):
                await self._client.aclose()
