"""An engine of SQLAlchemy, async or not, that runs plain functions of a connection.

The work is written once, as plain functions: an async engine runs them by SQLAlchemy's own bridge, any
other one in threads of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .connections import SqlConnections

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

R = TypeVar("R")


class SqlEngine(Protocol):
    """An engine, and what runs functions on its connections."""

    @property
    def sync(self) -> Engine:
        """The engine, or the one within an async engine."""
        ...

    async def run(self, function: Callable[[Connection], R]) -> R:
        """Run a function on a connection, in which each statement commits by itself.

        Suspends. Raises what the function and the client raise.
        """
        ...

    async def close(self) -> None:
        """Close the connections, and the engine if it is this sink's own."""
        ...


class AsyncSqlEngine:
    """An async engine. A cancelled call closes its connection."""

    def __init__(self, engine: AsyncEngine, *, closes: bool, keeps: bool, size: int) -> None:
        self.sync = engine.sync_engine
        self._engine = engine
        self._closes = closes
        self._connections = SqlConnections(self.sync, keeps=keeps)
        self._slots = asyncio.Semaphore(size)

    async def run(self, function: Callable[[Connection], R]) -> R:
        """See `SqlEngine`."""
        from sqlalchemy.util import greenlet_spawn

        async with self._slots:
            return await greenlet_spawn(self._connections.call, function)

    async def close(self) -> None:
        """See `SqlEngine`."""
        from sqlalchemy.util import greenlet_spawn

        await greenlet_spawn(self._connections.close)
        if self._closes:
            await self._engine.dispose()


class ThreadedSqlEngine:
    """Any other engine, in threads. A cancelled call waits for its thread, as long as a close may take."""

    def __init__(
        self, engine: Engine, *, closes: bool, keeps: bool, size: int, close_timeout: float
    ) -> None:
        self.sync = engine
        self._closes = closes
        self._close_timeout = close_timeout
        self._connections = SqlConnections(engine, keeps=keeps)
        self._threads = ThreadPoolExecutor(size, "penstock-sql")

    async def run(self, function: Callable[[Connection], R]) -> R:
        """See `SqlEngine`."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, self._connections.call, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done():
                future.add_done_callback(_ignored)
                await asyncio.wait([future], timeout=self._close_timeout)
            raise

    async def close(self) -> None:
        """See `SqlEngine`."""
        loop = asyncio.get_running_loop()
        self._threads.shutdown(wait=False)
        await loop.run_in_executor(None, self._connections.close)
        if self._closes:
            await loop.run_in_executor(None, self.sync.dispose)


def _ignored(future: asyncio.Future[Any]) -> None:
    """Take the error that no call is left to raise."""
    if not future.cancelled():
        future.exception()
