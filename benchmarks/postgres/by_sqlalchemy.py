"""SQLAlchemy 2 Core on asyncpg: a list of dictionaries for each batch, in a transaction."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import sqlalchemy

    from ..destination import Destination, Row, Write

REQUIRES = ("sqlalchemy", "greenlet")


@asynccontextmanager
async def executemany(to: Destination) -> AsyncGenerator[Write]:
    """Use a plain `insert()`, which asyncpg runs for each row in a pipeline."""
    table = table_of(to)
    async with _writing(to, table.insert()) as write:
        yield write


@asynccontextmanager
async def insertmanyvalues(to: Destination) -> AsyncGenerator[Write]:
    """Use `insert().returning()`, which SQLAlchemy converts to statements of many VALUES."""
    table = table_of(to)
    async with _writing(to, table.insert().returning(table.columns[0])) as write:
        yield write


@asynccontextmanager
async def _writing(to: Destination, statement: sqlalchemy.Insert) -> AsyncGenerator[Write]:
    import asyncpg
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda *_, **__: asyncpg.connect(to.dsn)
    )
    names = to.table.columns
    try:
        async with engine.connect() as connection:

            async def write(batch: Sequence[Row]) -> None:
                async with connection.begin():
                    rows = [dict(zip(names, row, strict=True)) for row in batch]
                    await connection.execute(statement, rows)

            yield write
    finally:
        await engine.dispose()


def table_of(to: Destination) -> sqlalchemy.Table:
    """Describe the table for SQLAlchemy."""
    import sqlalchemy

    types: dict[str, Any] = {
        "bigint": sqlalchemy.BigInteger(),
        "integer": sqlalchemy.Integer(),
        "text": sqlalchemy.Text(),
        "timestamp": sqlalchemy.DateTime(),
        "timestamptz": sqlalchemy.DateTime(timezone=True),
    }
    columns = [sqlalchemy.Column(name, types[kind]) for name, kind in to.table.types.items()]
    return sqlalchemy.Table(to.table.name, sqlalchemy.MetaData(), *columns)
