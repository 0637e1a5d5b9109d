"""Dead letters in a table, as written by `PostgresSink` with `DeadLetterRecord.as_row`.

Replays write their notes to three columns of the same table. A session-level advisory lock admits
one replay at a time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...letters.letter import (
    ERROR,
    INTERRUPTED,
    PENDING,
    DeadLetterRecord,
    NoLetterError,
    letter_of,
)
from ...letters.store import StoreError, Unreadable
from ..client.names import qualified, quoted
from .connection import LetterConnection
from .table import COLUMNS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType
    from typing import Self

    import asyncpg

    from ...letters.letter import Letter, Selection
    from ...letters.store import Ending
    from ..client.access import PostgresAccess

_BATCH = 500
_NO_TABLE = ("42P01", "3F000")
_NO_COLUMN = "42703"
_SIMILAR = """
SELECT c.oid::regclass::text AS name
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relkind IN ('r', 'p') AND a.attname = ANY($1) AND NOT a.attisdropped
GROUP BY c.oid HAVING count(*) = $2 ORDER BY 1 LIMIT 10
"""
"""Tables with these columns."""
_NOTED = ("state", "replay", "outcome")
_COLUMNS = ", ".join(map(quoted, (*DeadLetterRecord.COLUMNS, *_NOTED, "number")))
_CHANGED = ("attempts", *ERROR, "last_at")
"""Fields that a replay replaces if it has new values."""


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
            hint = await self._hint(error.__cause__)
            await self._connection.close()
            raise StoreError(
                f"{self._table} is not a table of dead letters: {why}{hint}"
            ) from error
        return self

    async def _hint(self, error: BaseException | None) -> str:
        """Return the names of similar tables if the table is missing, or the remedy for a missing
        column.
        """
        code = getattr(error, "sqlstate", None)
        if code == _NO_COLUMN:
            return "; `sluicegate dlq init` adds the column, or names the differences"
        if code not in _NO_TABLE:
            return ""
        names = [column.name for column in COLUMNS if not column.is_addable]
        found = await self._connection.ask("pg_class", _SIMILAR, names, len(names))
        others = ", ".join(row["name"] for row in found)
        return (
            f"; tables of dead letters in this database: {others}"
            if others
            else "; `sluicegate dlq init` creates it"
        )

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
        """See `Store`. Reads the keys at once and the letters in chunks, without a transaction."""
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
