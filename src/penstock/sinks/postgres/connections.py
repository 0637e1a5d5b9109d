"""The open pool of one sink, and how its connections are lent and come back.

1. A connection comes back out of any transaction, or is terminated. That is bounded by
   `close_timeout`.
2. After a cancellation it is reset in the background, since the server has to end the statement
   first.
3. A refusal makes every connection of the pool be replaced before its next use: a session keeps the
   role, the settings and the server that it began with, and after a failover or a repair a new one
   has others.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from ..._clients.postgres.errors import is_gone, sqlstate
from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ConfigError, RefusedError
from .refusals import for_connecting, repair_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from asyncpg.pool import Pool, PoolConnectionProxy

    from .config import Access

_REFUSED_HERE = frozenset({"28000", "28P01", "3D000", "42501"})


class Connections:
    """An asyncpg pool, open."""

    def __init__(self, pool: Pool[Any], place: str, close_timeout: float) -> None:
        self.pool = pool
        self._place = place
        self._close_timeout = close_timeout
        self._returning: set[asyncio.Task[None]] = set()

    @classmethod
    async def to(cls, access: Access, close_timeout: float) -> Connections:
        """Connect. Raises `ConfigError` for what is refused, and `UnavailableError` where no server
        answers.
        """
        pool = await _made(access)
        try:
            await pool
        except Exception as error:
            pool.terminate()
            raise opening_error(error, access.place)  # noqa: B904  # it has its cause
        if access.pool is not None and pool.get_max_size() < access.size:
            pool.terminate()
            raise bad(
                "pool_size",
                access.size,
                f"the pool that pool= makes has {pool.get_max_size()} connections at most",
            )
        return cls(pool, access.place, close_timeout)

    @asynccontextmanager
    async def lent(self) -> AsyncGenerator[PoolConnectionProxy[Any]]:
        """Lend a connection for as long as the context lasts. Raises, on entering, what
        `for_connecting` makes of the error.
        """
        try:
            con = await self.pool.acquire()
        except Exception as error:
            raise for_connecting(error, self._place)  # noqa: B904  # it has its cause
        try:
            yield con
        except asyncio.CancelledError:
            self._give_back_later(con)
            raise
        except BaseException as error:
            if isinstance(error, RefusedError):
                await self.pool.expire_connections()
            await self._give_back(con)
            raise
        await self._give_back(con)

    async def _give_back(self, con: PoolConnectionProxy[Any]) -> None:
        """Return a connection, out of any transaction; one that cannot be brought there in time is
        terminated.
        """
        try:
            if not is_gone(con) and con.is_in_transaction():
                async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._close_timeout):
                    await con.execute("ROLLBACK")
            await self.pool.release(con, timeout=self._close_timeout)
        except asyncio.CancelledError:
            self._give_back_later(con)
            raise
        except Exception:
            await self._drop(con)

    def _give_back_later(self, con: PoolConnectionProxy[Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._reset(con))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _reset(self, con: PoolConnectionProxy[Any]) -> None:
        """Wait for the cancelled statement's end, then return the connection."""
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._close_timeout):
                await con.execute(
                    "ROLLBACK"
                )  # waits for the end; without a transaction the server only gives a notice
            await self.pool.release(con, timeout=self._close_timeout)
        except Exception:
            await self._drop(con)

    async def _drop(self, con: PoolConnectionProxy[Any]) -> None:
        """Give up a connection; the pool makes another one in its place."""
        if not is_gone(con):
            con.terminate()
        await self.pool.release(con)

    async def close(self) -> None:
        """Close every connection, within `close_timeout`; then terminate them."""
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._close_timeout):
                await asyncio.gather(*self._returning, return_exceptions=True)
                await self.pool.close()
        except Exception:
            self.pool.terminate()


async def _made(access: Access) -> Pool[Any]:
    import asyncpg  # an optional dependency

    if access.pool is None:
        options: dict[str, Any] = {"reset": _nothing_to_reset, **access.pool_options()}
        made: Any = asyncpg.create_pool(access.dsn, **options)
    else:
        made = access.pool()
    if inspect.isawaitable(made) and not isinstance(made, asyncpg.Pool):
        made = await made
    if not isinstance(made, asyncpg.Pool):
        raise bad("pool", type(made).__name__, "the function must return an asyncpg pool")
    return cast("Pool[Any]", made)


async def _nothing_to_reset(con: object) -> None:
    """Writes leave nothing behind in a session, so returning a connection costs no round trip."""


def opening_error(error: Exception, place: str) -> Exception:
    """What opening raises: `ConfigError` for what the server refuses for good."""
    if sqlstate(error) in _REFUSED_HERE or isinstance(error, ssl.SSLCertVerificationError):
        made = ConfigError(f"dsn={place!r}: {error}; to repair: {repair_of(error, place)}")
        made.__cause__ = error
        return made
    return for_connecting(error, place)
