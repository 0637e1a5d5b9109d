"""Checks of the values that asyncpg can encode, without sending any row."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...._clients.postgres.errors import is_from_server, is_lost
from ..plan.facts import JSON_TYPES
from ..plan.temporary import EXACT, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..plan.plan import TablePlan
    from ..rows.lazy import Row


def staged_columns(plan: TablePlan) -> list[str]:
    """The columns of a staging table."""
    return ["o", *(f"c{place}" for place in range(len(plan.columns)))]


async def by_codecs(con: PoolConnectionProxy[Any], plan: TablePlan) -> TablePlan:
    """The plan adapted to the connection's codecs, some of which may be the user's. Suspends."""
    copies = await _can_copy(con, plan)
    json_types = frozenset([kind for kind in JSON_TYPES if await _takes_text(con, kind)])
    return replace(plan, copies=copies, json_types=json_types)


async def _takes_text(con: PoolConnectionProxy[Any], kind: str) -> bool:
    """Whether the codec of a type accepts only text, like asyncpg's own JSON codec.

    Nothing is sent: the second argument can never be encoded.
    """
    await con.execute("BEGIN")
    try:
        await con.fetch(f"SELECT $1::{kind}, $2::int4", _NEVER, _NEVER)
    except Exception as error:
        if is_lost(error) or is_from_server(error):
            raise
        return f"expected str, got {_Never.__name__}" in str(error)
    finally:
        await con.execute("ROLLBACK")
    return False


async def _can_copy(con: PoolConnectionProxy[Any], plan: TablePlan) -> bool:
    """Whether asyncpg can encode every column's type for `COPY`.

    Suspends; copies no rows into a staging table.
    """
    from asyncpg import InternalClientError  # an optional dependency

    await con.execute(f"BEGIN; {plan.staging()}")
    try:
        await con.copy_records_to_table(
            EXACT, records=(), columns=staged_columns(plan), schema_name=SCHEMA
        )
    except InternalClientError:
        return False
    finally:
        await con.execute("ROLLBACK")
    return True


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


class _Never:
    """A value that no codec encodes."""

    def __repr__(self) -> str:
        return "beyond the row"


_NEVER = _Never()
