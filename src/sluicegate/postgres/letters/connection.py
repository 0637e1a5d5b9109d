"""A connection to the database of dead letters. Its errors contain no passwords or item values.

Statements are not prepared, and behind a pooler each runs in a transaction block. A session-level
lock admits one replay at a time. Behind a pooler, a session is assigned for one transaction only,
so an open transaction on a second connection holds the lock.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..._core.errors import SinkError, UnavailableError
from ..._core.logs import for_log
from ...letters.store import StoreError
from ..client.access import access_of, connect
from ..client.answers import ANSWER_TIMEOUT, AnsweredConnection, disconnect, keep_alive
from ..client.statements import is_pooled

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractAsyncContextManager

    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    from ..client.access import PostgresAccess

CLOSE_TIMEOUT = 5.0
_LOCK = (
    "SELECT pg_try_advisory_{}lock(hashtext('sluicegate dlq'), to_regclass($1::text)::oid::int) "
    "AS held"
)


class LetterConnection:
    """One connection. Methods raise `StoreError`. A DSN that cannot be read raises `ConfigError`."""

    def __init__(self, dsn: str | PostgresAccess) -> None:
        self._access = access_of(dsn)
        self._connection: PoolConnectionProxy[Any] | None = None
        self._is_pooled = False
        self._holder: PoolConnectionProxy[Any] | None = None
        """The connection whose open transaction holds the lock."""

    async def open(self) -> None:
        """Connect. Raises `StoreError` if that fails."""
        self._connection = await self._connected()
        with self._errors_of("the connection"):
            self._is_pooled = await is_pooled(self._connection)

    async def _connected(self) -> PoolConnectionProxy[Any]:
        import asyncpg  # an optional dependency

        try:
            made = await connect(self._access)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, SinkError) as error:
            raise StoreError(f"no connection to {self.place}: {self.text_of(error)}") from None
        keep_alive(made)
        return AnsweredConnection.of(made, ANSWER_TIMEOUT, self.place)

    async def close(self) -> None:
        """Disconnect, within `CLOSE_TIMEOUT` seconds."""
        if self._holder is not None:
            self._holder.terminate()
        if self._connection is not None:
            await disconnect(self._connection, CLOSE_TIMEOUT)

    async def lock(self, table: str) -> bool:
        """Take the replay lock of `table` until the end; return whether it was free."""
        if not self._is_pooled:
            (row,) = await self.ask(table, _LOCK.format(""), table)
            return bool(row["held"])
        self._holder = await self._connected()
        with self._errors_of(table):
            await self._holder.execute("BEGIN")
            return bool(await self._holder.fetchval(_LOCK.format("xact_"), table))

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Return a transaction, as a context manager."""
        return self._open.transaction(isolation="read_committed")

    @property
    def _open(self) -> PoolConnectionProxy[Any]:
        if self._connection is None:
            raise StoreError("the store is not open")
        return self._connection

    async def ask(self, table: str, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """Return the rows of a statement about `table`, which errors name."""
        with self._errors_of(table):
            if self._holder is not None:
                await self._holder.execute("SELECT")  # raises if the lock is lost
            if self._open.is_in_transaction() or not self._is_pooled:
                return await self._open.fetch(statement, *arguments)
            async with self.transaction():
                return await self._open.fetch(statement, *arguments)

    @contextmanager
    def _errors_of(self, table: str) -> Generator[None]:
        import asyncpg  # an optional dependency

        try:
            yield
        except (
            OSError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            UnavailableError,
        ) as error:
            raise StoreError(f"{table} at {self.place}: {self.text_of(error)}") from error

    @property
    def place(self) -> str:
        """The server and the database."""
        return self._access.place

    def text_of(self, error: BaseException) -> str:
        """Return an error's text without item values."""
        return for_log(error).partition(": ")[2] or type(error).__name__
