"""psycopg 3 with its C accelerator, on a blocking connection, which is faster than its asynchronous
one.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from ..destination import insert_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

    import psycopg

    from ..destination import Destination, Row, Write

REQUIRES = ("psycopg", "psycopg_binary")


@asynccontextmanager
async def binary_copy(to: Destination) -> AsyncGenerator[Write]:
    """Use `COPY` in PostgreSQL's binary format, with declared column types."""
    types = list(to.table.types.values())
    with _cursor(to) as cursor:

        async def write(batch: Sequence[Row]) -> None:
            with cursor.copy(f"{_copy_of(to)} (FORMAT binary)") as copy:
                copy.set_types(types)
                for row in batch:
                    copy.write_row(row)

        yield write


@asynccontextmanager
async def text_copy(to: Destination) -> AsyncGenerator[Write]:
    """Use `COPY` in text format."""
    with _cursor(to) as cursor:

        async def write(batch: Sequence[Row]) -> None:
            with cursor.copy(_copy_of(to)) as copy:
                for row in batch:
                    copy.write_row(row)

        yield write


@asynccontextmanager
async def executemany(to: Destination) -> AsyncGenerator[Write]:
    """Use an `INSERT` per row, in a pipeline."""
    statement = insert_of(to, "%s")
    with _cursor(to) as cursor:

        async def write(batch: Sequence[Row]) -> None:
            cursor.executemany(statement, batch)

        yield write


def _copy_of(to: Destination) -> str:
    return f"COPY {to.table.name} ({to.table.names}) FROM STDIN"


@contextmanager
def _cursor(to: Destination) -> Generator[psycopg.Cursor[Any]]:
    import psycopg

    with psycopg.connect(to.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor
