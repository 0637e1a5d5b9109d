"""An open pool of connections to PostgreSQL.

1. A connection returns to the pool outside any transaction, within `close_timeout`, or is
   terminated.
2. After a cancellation it is reset in the background, since the server must end the statement
   first.
3. After a refusal every connection of the pool is replaced before its next use: a session keeps
   the role, the settings and the server that it began with, and after a failover or a repair a new
   one has others.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import RefusedError
from .errors import is_gone
from .refusals import for_connecting, for_opening

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from asyncpg.pool import Pool, PoolConnectionProxy

    from .access import Access


class Connections:
    """An open asyncpg pool."""

    def __init__(self, pool: Pool[Any], place: str, close_timeout: float) -> None:
        self.pool = pool
        self._place = place
        self._close_timeout = close_timeout
        self._returning: set[asyncio.Task[None]] = set()

    @classmethod
    async def to(cls, access: Access, close_timeout: float) -> Connections:
        """Connect. Raises `ConfigError` for a refusal, `UnavailableError` if no server answers."""
        pool = await _made(access)
        try:
            await pool
        except Exception as error:
            pool.terminate()
            raise for_opening(error, access.place)  # noqa: B904  # it has its cause
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
        """Lend a connection for the context. Entering raises errors as `for_connecting` does."""
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
        """Return a connection outside any transaction; terminate it if that takes too long."""
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
        """Wait for the end of the cancelled statement, then return the connection."""
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._close_timeout):
                # waits for the statement; outside a transaction the server only sends a notice
                await con.execute("ROLLBACK")
            await self.pool.release(con, timeout=self._close_timeout)
        except Exception:
            await self._drop(con)

    async def _drop(self, con: PoolConnectionProxy[Any]) -> None:
        """Terminate a connection; the pool replaces it."""
        if not is_gone(con):
            con.terminate()
        await self.pool.release(con)

    async def close(self) -> None:
        """Close every connection within `close_timeout`, then terminate the rest."""
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
    """Skip the reset and its round trip: writes leave no state in a session."""
