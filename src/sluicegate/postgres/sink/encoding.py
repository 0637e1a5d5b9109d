"""The encoding of values: by asyncpg, or by our extension, which yields the same bytes faster.

1. asyncpg remains the authority on every value. It is asked which types it can encode, and which
   rows, without sending any.
2. Without the extension, asyncpg encodes every row. Rows with a value that our encoder declines are
   sent by asyncpg, which accepts the value or names the error. The first piece is encoded before
   anything is sent; a value declined after it ends the `COPY`, which then stores nothing. Values
   that asyncpg would change are declined, and checked before asyncpg sends them.
3. After a declined batch our encoder is not tried for the next `PAUSE` batches, so that a producer
   of such values does not pay for two encoders.
4. Text is packed as UTF-8, and only for connections with that encoding.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..client.errors import is_about_items, is_from_server, is_lost, is_stale
from ..client.statements import rolled_back
from ..copying.rows import Declined, codes_of, pieces
from .facts import JSON_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from .plan import TablePlan
    from .rows.values import Row
    from .table import TableColumn

_BINARY = 1
"""The binary format, as in PostgreSQL's protocol."""
_ONLY_DECODED = frozenset({4600, 4601})
"""The types of summaries in BRIN indexes, whose asyncpg codecs have no encoder."""
PAUSE = 50
"""Number of batches that asyncpg encodes after one with a declined value."""
_UTF8 = frozenset({"UTF8", "UTF-8"})


def staged_columns(plan: TablePlan) -> list[str]:
    """The columns of a staging table."""
    return ["o", *(f"c{place}" for place in range(len(plan.columns)))]


async def by_codecs(con: PoolConnectionProxy[Any], plan: TablePlan) -> TablePlan:
    """The plan adapted to the connection's codecs; suspends for a few round trips, if any.

    A column whose type asyncpg cannot send in binary form is sent as text, which the server
    converts. With codecs of the user's, whose text is unknown, its values are parameters.
    """
    columns = [plan.table.column(name) for name in plan.columns]
    lacking = await _without_binary(con, columns)
    if not plan.reads_text:
        return replace(plan, uncopied=tuple(column.name for column in lacking))
    texts = {column.name: _as_text(column) for column in lacking}
    if not texts:
        return plan
    table = replace(
        plan.table,
        columns=tuple(texts.get(column.name, column) for column in plan.table.columns),
    )
    return replace(plan, table=table)


def _as_text(column: TableColumn) -> TableColumn:
    is_array = column.kind is not None and column.kind.kind == "a"
    return replace(column, as_text="text[]" if is_array else "text", is_nested=is_array, kind=None)


async def json_by_codecs(con: PoolConnectionProxy[Any], plan: TablePlan) -> TablePlan:
    """The plan with the JSON types that no codec of the user's encodes. Suspends."""
    json_types = frozenset([kind for kind in JSON_TYPES if await _takes_text(con, kind)])
    return replace(plan, json_types=json_types)


async def _takes_text(con: PoolConnectionProxy[Any], kind: str) -> bool:
    """Whether the codec of a type accepts only text, like asyncpg's own JSON codec.

    Nothing is sent: the second argument can never be encoded.
    """
    async with rolled_back(con):
        try:
            await con.fetch(f"SELECT $1::{kind}, $2::int4", _NEVER, _NEVER)
        except Exception as error:
            if is_lost(error) or is_from_server(error):
                raise
            return f"expected str, got {_Never.__name__}" in str(error)
    return False


async def _without_binary(
    con: PoolConnectionProxy[Any], columns: Sequence[TableColumn]
) -> list[TableColumn]:
    """The columns whose types asyncpg cannot encode in binary form, the only one that it copies.

    Its codecs are those of asyncpg, which loads those of the types that are not built in when a
    statement has a parameter of the type; for some types it has none at all, and refuses that.
    """
    from asyncpg import InterfaceError, InternalClientError  # an optional dependency

    unknown = [column for column in columns if not _has_binary(con, column)]
    for column in unknown:
        try:
            await con.prepare(f"SELECT $1::{column.loose}", name="")
        except (InterfaceError, InternalClientError) as error:
            if is_lost(error) or is_stale(error):
                raise
    if unknown:
        await con.execute("SELECT")  # ends the transaction in which a statement was prepared
    return [column for column in unknown if not _has_binary(con, column)]


def _has_binary(con: PoolConnectionProxy[Any], column: TableColumn) -> bool:
    settings: Any = con.get_settings()
    if column.oid in _ONLY_DECODED:
        return False
    return settings.get_data_codec(column.oid, _BINARY) is not None


async def refused_rows(
    con: PoolConnectionProxy[Any], plan: TablePlan, rows: Sequence[Row]
) -> dict[int, Exception]:
    """The error of each row that cannot be sent, by its place: asyncpg cannot encode it, or its
    text contains a NUL.

    asyncpg encodes all arguments of a query, in order, before it sends anything. This query has one
    more argument, which can never be encoded, so nothing is sent: the error is either about that
    argument, and the row is good, or about an earlier one.
    """
    refused: dict[int, Exception] = {}
    beyond = len(plan.columns) + 1
    statement = await con.prepare(plan.encode, name="")
    for place, row in enumerate(rows):
        try:
            await statement.fetch(*row, _NEVER)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if is_lost(error) or is_from_server(error):
                raise
            found = re.search(r"query argument \$(\d+)", str(error))
            if found is None or int(found[1]) != beyond:
                refused[place] = error
        if place not in refused and any(isinstance(value, str) and "\0" in value for value in row):
            refused[place] = ValueError("PostgreSQL's text cannot hold the character NUL (\\x00)")
    # a statement that asyncpg has prepared but not sent leaves a transaction open, with a lock on
    # the table
    await con.execute("SELECT")
    return refused


async def unread_rows(
    con: PoolConnectionProxy[Any], plan: TablePlan, rows: Sequence[Row]
) -> dict[int, Exception]:
    """The error of each row with a parameter that the server cannot read, by its place.

    In the open transaction, with a round trip and a savepoint per row: for values that a user's
    codec encodes as text, of which the server names no row.
    """
    refused: dict[int, Exception] = {}
    for place, row in enumerate(rows):
        await con.execute("SAVEPOINT sluicegate_read")
        try:
            await con.execute(plan.read, *row)
        except Exception as error:
            if is_lost(error) or not (is_from_server(error) and is_about_items(error)):
                raise
            refused[place] = error
        await con.execute("ROLLBACK TO SAVEPOINT sluicegate_read")
    return refused


class _Never:
    """A value that no codec encodes."""

    def __repr__(self) -> str:
        return "beyond the row"


_NEVER = _Never()


class Packing:
    """The choice between our encoder and asyncpg's, for the batches of one sink."""

    def __init__(self) -> None:
        self._paused = 0

    def tries(self, con: PoolConnectionProxy[Any], types: tuple[str, ...]) -> bool:
        """Whether the next rows for columns of these types are packed, unless they are declined."""
        return self._codes(con, types) is not None

    def _codes(self, con: PoolConnectionProxy[Any], types: tuple[str, ...]) -> bytes | None:
        codes = codes_of(types) if types and not self._paused else None
        return codes if codes is not None and speaks_utf8(con) else None

    def pieces(
        self, con: PoolConnectionProxy[Any], types: tuple[str, ...], rows: Sequence[Row]
    ) -> Iterator[bytes] | None:
        """The rows as binary `COPY`, with the first piece already encoded; `None` to let asyncpg
        send them.
        """
        codes = self._codes(con, types)
        if codes is None:
            self._paused = max(0, self._paused - 1)
            return None
        found = pieces(codes, rows)
        try:
            first = next(found)
        except Declined:
            self.decline()
            return None
        return chain((first,), found)

    def decline(self) -> None:
        """Leave the next batches to asyncpg."""
        self._paused = PAUSE


def speaks_utf8(con: PoolConnectionProxy[Any]) -> bool:
    """Whether text is sent to the server as UTF-8."""
    return str(con.get_settings().client_encoding).upper() in _UTF8
