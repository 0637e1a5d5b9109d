"""Dead letters in a table, as written by `PostgresSink` with `DeadLetterRecord.as_row`.

Replays write their notes to three columns of the same table. An advisory lock of the session admits
one replay at a time.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from .._clients.postgres.names import qualified, quoted
from .._core import told
from .letter import INTERRUPTED, PENDING, NoLetterError, letter_of
from .record import DeadLetterRecord
from .store import StoreError, Unreadable
from .text import without_secrets

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType
    from typing import Self

    import asyncpg

    from .letter import Letter, Selection
    from .store import Ending

_BATCH = 500
_PLAIN_DSN = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^@/?#]*)@)?(?P<hosts>[\w.,-]*)(?P<port>:\d+)?(?P<database>/[\w-]*)?(?:\?[^@]*)?"
)
"""A DSN that can be split safely. In any other, a part of the password may look like a host."""
_DSN_RULE = (
    "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the port a number, and characters "
    "such as @ : / # % in a password as %40 and so on"
)
_NOTED = ("state", "replay", "outcome")
_ENDING = ("key", "state", "outcome", "attempts", "error_type", "error_class", "message", "last_at")


class PostgresStore:
    """A table of dead letters."""

    def __init__(self, dsn: str, table: str, schema: str | None) -> None:
        self._dsn = dsn
        self._table = qualified(schema, table)
        self._connection: asyncpg.Connection[Any] | None = None
        self.unreadable = Unreadable()

    async def __aenter__(self) -> Self:
        import asyncpg  # an optional dependency

        try:
            self._connection = await asyncpg.connect(self._dsn)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StoreError(f"no connection to {self._place}: {self._told(error)}") from None
        except (ValueError, TypeError, LookupError):  # its text may hold any part of the DSN
            raise StoreError(f"the DSN of {self._place} cannot be read: {_DSN_RULE}") from None
        try:
            await self._ask(f"SELECT {self._columns}, number FROM {self._table} LIMIT 0")
        except StoreError as error:
            await self._con.close()
            cause = error.__cause__ or error
            raise StoreError(
                f"{self._table} is no table of dead letters: {self._told(cause)}"
            ) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._con.close(timeout=5.0)

    @property
    def _con(self) -> asyncpg.Connection[Any]:
        if self._connection is None:
            raise StoreError("the store is not open")
        return self._connection

    async def _ask(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        import asyncpg  # an optional dependency

        try:
            return await self._con.fetch(statement, *arguments)
        except (
            OSError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ) as error:
            raise StoreError(f"{self._table} at {self._place}: {self._told(error)}") from error

    @property
    def _place(self) -> str:
        """The server's address, without anything that may be a part of the password."""
        found = _PLAIN_DSN.fullmatch(self._dsn)
        if found is None:
            return "PostgreSQL"
        port = (
            "" if found["user"] is None else found["port"] or ""
        )  # of USER:NUMBER alone it may be a password
        return f"{found['hosts'] or 'the default host'}{port}{found['database'] or ''}"

    def _told(self, error: BaseException) -> str:
        """An error's text without values of items and without the DSN's secrets."""
        text = told.for_log(error).partition(": ")[2] or type(error).__name__
        for part in _suspects(self._dsn):
            text = text.replace(part, "***")
        return without_secrets(text)

    @property
    def _columns(self) -> str:
        return ", ".join(map(quoted, (*DeadLetterRecord.COLUMNS, *_NOTED)))

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
                f"SELECT {self._columns}, number FROM {self._table} WHERE key = ANY($1) "
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
        (row,) = await self._ask(
            "SELECT pg_try_advisory_lock(hashtext('penstock dlq'), "
            "to_regclass($1::text)::oid::int) AS held",
            self._table,
        )
        if not row["held"]:
            raise StoreError(f"another replay of {self._table} is under way")

    async def begin(self, replay: str, keys: Sequence[str]) -> None:
        """See `Store`."""
        statement = f"UPDATE {self._table} SET state = $1, replay = $2 WHERE key = ANY($3)"
        await self._ask(statement, INTERRUPTED, replay, list(keys))

    async def end(self, replay: str, endings: Sequence[Ending]) -> None:
        """See `Store`."""
        given = json.dumps([ending.as_dict() for ending in endings])
        changes = ", ".join(f"{name} = COALESCE(e.{name}, t.{name})" for name in _ENDING[3:])
        await self._ask(
            f"UPDATE {self._table} t SET state = e.state, outcome = e.outcome, {changes} FROM "
            "json_to_recordset($1::json)"
            " AS e(key text, state text, outcome text, attempts int, error_type text, "
            "error_class text, message text, last_at timestamptz)"
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


def _suspects(dsn: str) -> list[str]:
    """The parts of a DSN that may be a password or a piece of one, longest first."""
    rest = dsn.partition(":")[2].lstrip("/").partition(":")[2]
    if _PLAIN_DSN.fullmatch(dsn):
        rest = rest.partition("@")[0] + "?" + dsn.partition("?")[2]
    found = {
        part
        for part in (*re.split(r"[:/@?#&=]", rest), *re.split(r"[:/@?#&=]", unquote(rest)))
        if len(part) > 2
    }
    return sorted(found, key=len, reverse=True)


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
