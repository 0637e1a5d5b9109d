"""The demo's database: an embedded one, which may be killed, or a given one, which may not.

Starting, killing and restarting it block, so they run in a thread. A thread cannot be cancelled:
the exit waits for it first, and stops the server only then. In the opposite order, a start in
progress would leave an orphaned server behind.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from sluicegate.postgres import PostgresAccess
from sluicegate.testing import EmbeddedPostgres, embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

R = TypeVar("R")

DOWN_SECONDS = 1.0


class Database:
    """A context that connects to `dsn`, or starts a server and removes it at its exit."""

    def __init__(self, dsn: str | None) -> None:
        """Raises `ConfigError` for a DSN that cannot be read."""
        if dsn is not None:
            PostgresAccess(dsn)
        self.state = "starting" if dsn is None else "given, never killed"
        """The server's state, for display."""
        self._dsn = dsn
        self._server: EmbeddedPostgres | None = None
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="demo")

    async def __aenter__(self) -> Self:
        if self._dsn is not None:
            return self
        try:
            self._server = await self._in_thread(
                lambda: self._stack.enter_context(embedded_postgres())
            )
        except BaseException:
            self._close()
            raise
        self.state = "up"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._stack.close()

    @property
    def dsn(self) -> str:
        """The DSN of the open database."""
        if self._dsn is not None:
            return self._dsn
        if self._server is None:
            message = "the database is not open"
            raise RuntimeError(message)
        return self._server.dsn

    @property
    def may_be_killed(self) -> bool:
        """Whether it is the embedded one."""
        return self._server is not None

    async def crash(self, say: Callable[[str], None]) -> None:
        """Kill the server, wait a second, and start it again; report each step through `say`."""
        server = self._server
        if server is None:
            return
        say("half-way: killing the database server with SIGKILL")
        self.state = "killed"
        await self._in_thread(server.kill)
        await asyncio.sleep(DOWN_SECONDS)
        say("starting the database server again on the crashed data directory")
        self.state = "recovering"
        await self._in_thread(server.start)
        self.state = "up again"
        say("the database server is up again")

    async def _in_thread(self, function: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
