"""An engine of SQLAlchemy, async or not, that runs plain functions of a connection.

The work is written once, as plain functions: an async engine runs them by SQLAlchemy's own bridge, any
other one in threads of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

R = TypeVar("R")


class SqlEngine:
    """An engine, and what runs functions on its connections."""

    def __init__(self, engine: Engine) -> None:
        self.sync = engine

    async def run(self, function: Callable[[Connection], R], *, alone: bool = False) -> R:
        """Run a function on a connection; with `alone`, each statement commits by itself.

        Suspends. Raises what the function and the client raise.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close the engine, if it is this sink's own."""
        raise NotImplementedError


class AsyncSqlEngine(SqlEngine):
    """An async engine. A cancelled call closes its connection."""

    def __init__(self, engine: AsyncEngine, *, closes: bool) -> None:
        super().__init__(engine.sync_engine)
        self._engine = engine
        self._alone = self.sync.execution_options(isolation_level="AUTOCOMMIT")
        self._closes = closes

    async def run(self, function: Callable[[Connection], R], *, alone: bool = False) -> R:
        """See the base."""
        from sqlalchemy.util import greenlet_spawn

        return await greenlet_spawn(_called, self._alone if alone else self.sync, function)

    async def close(self) -> None:
        """See the base."""
        if self._closes:
            await self._engine.dispose()


class ThreadedSqlEngine(SqlEngine):
    """Any other engine, in threads. A cancelled call waits for its thread, as long as a close may take."""

    def __init__(self, engine: Engine, *, closes: bool, threads: int, close_timeout: float) -> None:
        super().__init__(engine)
        self._alone = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._closes = closes
        self._close_timeout = close_timeout
        self._threads = ThreadPoolExecutor(threads, "penstock-sql")

    async def run(self, function: Callable[[Connection], R], *, alone: bool = False) -> R:
        """See the base."""
        engine = self._alone if alone else self.sync
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, _called, engine, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done():
                future.add_done_callback(_ignored)
                await asyncio.wait([future], timeout=self._close_timeout)
            raise

    async def close(self) -> None:
        """See the base."""
        loop = asyncio.get_running_loop()
        self._threads.shutdown(wait=False)
        if self._closes:
            await loop.run_in_executor(None, self.sync.dispose)


def _called(engine: Engine, function: Callable[[Connection], R]) -> R:
    with engine.connect() as con:
        return function(con)


def _ignored(future: asyncio.Future[Any]) -> None:
    """Take the error that no call is left to raise."""
    if not future.cancelled():
        future.exception()
