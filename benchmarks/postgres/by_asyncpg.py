"""asyncpg: one statement or one COPY for each batch."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..destination import values_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import asyncpg

    from ..destination import Destination, Row, Write


@asynccontextmanager
async def values(to: Destination) -> AsyncGenerator[Write]:
    """Use an `INSERT` with a list of values per row; its text is built once per number of rows."""
    statement = cache(lambda rows: values_of(to, rows))
    async with _connection(to) as connection:

        async def write(batch: Sequence[Row]) -> None:
            await connection.fetch(statement(len(batch)), *chain.from_iterable(batch))

        yield write


@asynccontextmanager
async def unnest(to: Destination) -> AsyncGenerator[Write]:
    """Use an `INSERT` from an array per column."""
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(to.table.types.values(), 1))
    statement = (
        f"INSERT INTO {to.table.name} ({to.table.names}) SELECT * FROM unnest({arrays}){to.clauses}"
    )
    async with _connection(to) as connection:

        async def write(batch: Sequence[Row]) -> None:
            await connection.fetch(statement, *zip(*batch, strict=True))

        yield write


@asynccontextmanager
async def copy(to: Destination) -> AsyncGenerator[Write]:
    """Use `COPY` of records."""
    async with _connection(to) as connection:

        async def write(batch: Sequence[Row]) -> None:
            await connection.copy_records_to_table(
                to.table.name, records=batch, columns=to.table.columns
            )

        yield write


@asynccontextmanager
async def executemany(to: Destination) -> AsyncGenerator[Write]:
    """Use an `INSERT` per row, in a pipeline."""
    statement = values_of(to, 1)
    async with _connection(to) as connection:

        async def write(batch: Sequence[Row]) -> None:
            await connection.executemany(statement, batch)

        yield write


@asynccontextmanager
async def _connection(to: Destination) -> AsyncGenerator[asyncpg.Connection[Any]]:
    import asyncpg

    connection = await asyncpg.connect(to.dsn)
    try:
        yield connection
    finally:
        await connection.close()
