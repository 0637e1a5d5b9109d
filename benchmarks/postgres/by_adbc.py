"""ADBC's driver for PostgreSQL: Arrow columns, made from a batch's rows, ingested by COPY."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ..destination import Destination, Row, Write

REQUIRES = ("adbc_driver_postgresql", "pyarrow")


@asynccontextmanager
async def ingest(to: Destination) -> AsyncGenerator[Write]:
    """Use `adbc_ingest`; building the columns is part of the write."""
    import pyarrow as pa
    from adbc_driver_postgresql import dbapi

    schema = pa.schema([(name, _arrow(pa, kind)) for name, kind in to.table.types.items()])
    with dbapi.connect(to.dsn, autocommit=True) as connection, connection.cursor() as cursor:

        async def write(batch: Sequence[Row]) -> None:
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*batch, strict=True), schema, strict=True)
            ]
            rows = pa.RecordBatch.from_arrays(columns, schema=schema)
            cursor.adbc_ingest(to.table.name, rows, mode="append")

        yield write


def _arrow(pa: Any, kind: str) -> Any:
    types = {
        "bigint": pa.int64(),
        "integer": pa.int32(),
        "text": pa.string(),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
    }
    return types[kind]
