"""What asyncpg can send at all, asked without sending it."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from ..._clients.postgres.errors import is_from_server, is_lost
from .sql import EXACT, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg.pool import PoolConnectionProxy

    from .rows import Row
    from .sql import Plan


def staged_columns(plan: Plan) -> list[str]:
    """The columns of a staging table."""
    return ["o", *(f"c{place}" for place in range(len(plan.columns)))]


async def can_copy(con: PoolConnectionProxy[Any], plan: Plan) -> bool:
    """Whether asyncpg can encode every column's type for `COPY`; asked by copying no rows into a
    staging table. Suspends.
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
    con: PoolConnectionProxy[Any], plan: Plan, rows: Sequence[Row]
) -> dict[int, Exception]:
    """The rows that cannot be sent, by their place, each with its error: what asyncpg cannot
    encode, and text that holds a NUL.

    asyncpg encodes all arguments of a query, in order, before it sends anything. The query asked
    here has one argument more, which never encodes, so that nothing is ever sent: the complaint is
    either about that one, and the row is good, or about an earlier one.
    """
    refused: dict[int, Exception] = {}
    beyond = len(plan.columns) + 1
    for place, row in enumerate(rows):
        try:
            await con.fetch(plan.encode, *row, _NEVER)
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
    await con.execute(
        "SELECT"
        # what asyncpg has prepared and not sent leaves the server in a transaction, with a lock on
        # the table
    )
    return refused


class _Never:
    """Encodes as nothing."""

    def __repr__(self) -> str:
        return "beyond the row"


_NEVER = _Never()
