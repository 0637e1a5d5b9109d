"""Dead letters in a table, as written by `PostgresSink` with `DeadLetterRecord.as_row`.

1. Replays write their notes to three columns of the same table. A session-level advisory lock
   admits one replay at a time. Behind a pooler, a session is assigned for one transaction only, so
   an open transaction on a second connection holds the lock.
2. Statements are not prepared, and behind a pooler each runs in a transaction block. Errors contain
   no passwords or item values.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..._core.errors import SinkError, UnavailableError
from ..._core.logs import for_log
from ...letters.letter import (
    ERROR,
    INTERRUPTED,
    PENDING,
    NoLetterError,
    letter_of,
)
from ...letters.store import StoreError, Unreadable
from ..client.access import access_of, connect
from ..client.answers import ANSWER_TIMEOUT, AnsweredConnection, disconnect, keep_alive
from ..client.names import qualified, quoted
from ..client.statements import is_pooled
from .table import COLUMNS, creation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    from ...letters.letter import Letter, Selection
    from ...letters.store import Ending
    from ..client.access import PostgresAccess


_BATCH = 500
_NO_TABLE = ("42P01", "3F000")
_NOTED = ("state", "replay", "outcome")
_COLUMNS = ", ".join(map(quoted, COLUMNS))
_CHANGED = ("attempts", *ERROR, "last_at")
"""Fields that a replay replaces if it has new values."""
CLOSE_TIMEOUT = 5.0
"""Seconds for closing the connection."""
_PREPARES = "SELECT pg_advisory_xact_lock(hashtext('sluicegate dlq init'))"
_EXISTS = "SELECT to_regclass($1::text) IS NOT NULL AS does"
_LOCK = (
    "SELECT pg_try_advisory_{}lock(hashtext('sluicegate dlq'), to_regclass($1::text)::oid::int) "
    "AS held"
)


class PostgresStore:
    """A table of dead letters."""

    def __init__(self, dsn: str | PostgresAccess, table: str, schema: str | None) -> None:
        self._table = qualified(schema, table)
        self._connection = LetterConnection(dsn)
        self.unreadable = Unreadable()

    async def __aenter__(self) -> Self:
        await self._connection.open()
        try:
            await self._ask(f"SELECT {_COLUMNS} FROM {self._table} LIMIT 0")
        except StoreError as error:
            why = self._connection.text_of(error.__cause__ or error)
            await self._connection.close()
            is_missing = getattr(error.__cause__, "sqlstate", None) in _NO_TABLE
            hint = "; `sluicegate dlq init` creates it" if is_missing else ""
            raise StoreError(
                f"{self._table} is not a table of dead letters: {why}{hint}"
            ) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._connection.close()

    async def _ask(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        return await self._connection.ask(self._table, statement, *arguments)

    async def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        """See `Store`. Reads all keys by one query and the letters in chunks, without a
        transaction.
        """
        self.unreadable.clear()
        order = f"state <> '{INTERRUPTED}', number"
        found = await self._ask(
            f"SELECT key FROM {self._table} WHERE state = ANY($1) ORDER BY {order}",
            list(selection.states),
        )
        keys = [row["key"] for row in found]
        for start in range(0, len(keys), _BATCH):
            query = (
                f"SELECT {_COLUMNS} FROM {self._table} WHERE key = ANY($1) "
                "ORDER BY array_position($1, key)"
            )
            for row in await self._ask(query, keys[start : start + _BATCH]):
                try:
                    letter = _letter(row)
                except NoLetterError as error:
                    self.unreadable.add(f"{self._table}, number {row['number']}", str(error))
                    continue
                if selection.has(letter):
                    yield letter

    async def hold(self) -> None:
        """See `Store`."""
        if not await self._connection.lock(self._table):
            raise StoreError(f"another replay of {self._table} is running")

    async def begin(self, replay: str, keys: Sequence[str]) -> None:
        """See `Store`."""
        statement = f"UPDATE {self._table} SET state = $1, replay = $2 WHERE key = ANY($3)"
        await self._ask(statement, INTERRUPTED, replay, list(keys))

    async def end(self, replay: str, endings: Sequence[Ending]) -> None:
        """See `Store`."""
        given = json.dumps([ending.as_dict() for ending in endings])
        changes = ", ".join(f"{name} = COALESCE(e.{name}, t.{name})" for name in _CHANGED)
        await self._ask(
            f"UPDATE {self._table} t SET state = e.state, outcome = e.outcome, {changes} FROM "
            "json_to_recordset($1::json)"
            " AS e(key text, state text, outcome text, attempts int, error_type text, "
            "error_class text, message text, cause_type text, code text, last_at timestamptz)"
            " WHERE t.key = e.key",
            given,
        )

    async def purge(self, selection: Selection) -> int:
        """See `Store`."""
        await self.hold()
        keys = [letter.key async for letter in self.letters(selection)]
        for start in range(0, len(keys), _BATCH):
            await self._ask(
                f"DELETE FROM {self._table} WHERE key = ANY($1)", keys[start : start + _BATCH]
            )
        return len(keys)


def _letter(row: asyncpg.Record) -> Letter:
    """Decode a row. Raises `NoLetterError`."""
    record = dict(row)
    for name in ("item", "tenant"):
        value = record[name]
        if isinstance(value, str):
            try:
                record[name] = json.loads(value)
            except (ValueError, RecursionError):
                raise NoLetterError(f"no JSON in {name}") from None
    noted = {name: record[name] for name in _NOTED} | {"state": record["state"] or PENDING}
    return letter_of(record).after(noted)


class LetterConnection:
    """One connection. Methods raise `StoreError`. A DSN that cannot be read raises `ConfigError`."""

    def __init__(self, dsn: str | PostgresAccess) -> None:
        self._access = access_of(dsn, lends=False)
        self._connection: PoolConnectionProxy[Any] | None = None
        self._is_pooled = False
        self._holder: PoolConnectionProxy[Any] | None = None
        """The connection whose open transaction holds the lock."""

    async def open(self) -> None:
        """Connect. Raises `StoreError` if that fails."""
        self._connection = await self._connect()
        with self._errors_of("the connection"):
            self._is_pooled = await is_pooled(self._connection)

    async def _connect(self) -> PoolConnectionProxy[Any]:
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
        self._holder = await self._connect()
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


async def prepare(
    dsn: str | PostgresAccess, table: str, schema: str | None, *, dry_run: bool = False
) -> str | None:
    """Create the table of dead letters; return the statement, `None` if the table exists.

    Concurrent calls wait for each other. Raises `StoreError`, also for a table of something else.
    """
    name = qualified(schema, table)
    connection = LetterConnection(dsn)
    await connection.open()
    try:
        async with connection.transaction():
            await connection.ask(name, _PREPARES)
            (found,) = await connection.ask(name, _EXISTS, name)
            if not found["does"] and not dry_run:
                await connection.ask(name, creation(name))
            if found["does"] or not dry_run:
                await connection.ask(name, f"SELECT {_COLUMNS} FROM {name} LIMIT 0")
    finally:
        await connection.close()
    return None if found["does"] else creation(name)
