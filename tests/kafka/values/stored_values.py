"""The table of what each destination stores for the types of Avro, in the guide to registries:
`python -m tests.kafka.values.stored_values` writes it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import parquet
from tests.clickhouse.clickhouse_help import PLAIN
from tests.clickhouse.servers import EngineServer, running
from tests.kafka.values.scripted_registry import scripted_registry

from sluicegate import RowBatch, send
from sluicegate.clickhouse import ClickHouseSink
from sluicegate.files import FileSink
from sluicegate.http import HttpAccess
from sluicegate.kafka import Avro, SchemaRegistry
from sluicegate.objects import ParquetSink
from sluicegate.postgres import PostgresSink
from sluicegate.sql import SqlSink
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "use-a-schema-registry.md"
AT = datetime(2026, 1, 2, 3, 4, 5, 123_456)
REFUSED = "refused"
HEAD = (
    "| Avro | Python | JSON | PostgreSQL | ClickHouse | Parquet | SQLite |\n"
    "|---|---|---|---|---|---|---|\n"
)


class Field(NamedTuple):
    """A field of a record, with columns that fit."""

    avro: str
    schema: Any
    value: Any
    clickhouse: str
    parquet: pa.DataType
    sqlite: str


def _logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


PRICE = _logical("bytes", "decimal", precision=9, scale=2)
PRICED = {"type": "record", "name": "Priced", "fields": [{"name": "n", "type": PRICE}]}
FIELDS = [
    Field("`long`, `int`", "long", 2**60 + 1, "Int64", pa.int64(), "BIGINT"),
    Field("`double`, `float`", "double", 1.5, "Float64", pa.float64(), "FLOAT"),
    Field("`boolean`", "boolean", True, "Bool", pa.bool_(), "BOOLEAN"),
    Field("`string`", "string", "Zoë", "String", pa.string(), "TEXT"),
    Field("`bytes`, `fixed`, `duration`", "bytes", b"\xc3\xab", "String", pa.binary(), "BLOB"),
    Field("`enum`", {"type": "enum", "name": "E", "symbols": ["PAID"]}, "PAID", "Enum8('PAID' = 1)", pa.string(), "TEXT"),
    Field("`decimal`", PRICE, Decimal("12.30"), "Decimal(9, 2)", pa.decimal128(9, 2), "NUMERIC(9, 2)"),
    Field("`timestamp-millis`, `-micros`", _logical("long", "timestamp-micros"), AT.replace(tzinfo=UTC), "DateTime64(6, 'UTC')", pa.timestamp("us", "UTC"), "DATETIME"),
    Field("`timestamp-nanos`", _logical("long", "timestamp-nanos"), 1_767_323_045_123_456_789, "Int64", pa.int64(), "BIGINT"),
    Field("`local-timestamp-millis`, `-micros`", _logical("long", "local-timestamp-micros"), AT, "DateTime64(6, 'UTC')", pa.timestamp("us"), "DATETIME"),
    Field("`date`", _logical("int", "date"), AT.date(), "Date32", pa.date32(), "DATE"),
    Field("`time-millis`, `-micros`", _logical("long", "time-micros"), AT.time(), "String", pa.time64("us"), "TIME"),
    Field("`uuid`", _logical("string", "uuid"), uuid.UUID(int=7), "UUID", pa.binary(16), "CHAR(36)"),
    Field("`record`", PRICED, {"n": Decimal("1.50")}, "Tuple(n Decimal(9, 2))", pa.struct({"n": pa.decimal128(9, 2)}), "JSON"),
    Field("`array`", {"type": "array", "items": "long"}, [7, 8], "Array(Int64)", pa.list_(pa.int64()), "JSON"),
    Field("`map`", {"type": "map", "values": "double"}, {"a": 1.5}, "Map(String, Float64)", pa.map_(pa.string(), pa.float64()), "JSON"),
    Field("null in a union", ["null", "long"], None, "Nullable(Int64)", pa.int64(), "BIGINT"),
]  # fmt: skip


async def decoded() -> list[Any]:
    """The values of `FIELDS` after they were encoded and decoded."""
    fields = [{"name": f"f{at}", "type": each.schema} for at, each in enumerate(FIELDS)]
    schema = {"type": "record", "name": "All", "fields": fields}
    async with scripted_registry() as there:
        there.has(1, schema)
        there.answers["/subjects/t-value"] = 200, {"id": 1}
        registry = SchemaRegistry(there.url)
        item = {f"f{at}": each.value for at, each in enumerate(FIELDS)}
        data = await registry.call(Avro(registry, schema).encoder("t"), item)
        return [*(await registry.call(Avro(registry).decode, data)).values()]


async def _written(sink: Any, value: Any) -> str | None:
    """The name of the error of a value."""
    async with sink:
        errors = await send(sink, RowBatch([{"v": value}]))
    return type(errors[0]).__name__ if errors else None


def _cell(kind: str, found: object, value: object) -> str:
    """The type of the column, and the stored value if it is another one."""
    return f"`{kind}`" if found == value else f"`{kind}`: `{found}`"


async def in_json(value: Any, _: Field) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        if await _written(FileSink(path), value):
            return REFUSED
        text = path.read_text()
    return "`" + text.strip().removeprefix('{"v":').removesuffix("}") + "`"


async def in_postgres(dsn: str, value: Any, _: Field) -> str:
    import asyncpg

    con = await asyncpg.connect(dsn)
    try:
        await con.execute("DROP TABLE IF EXISTS stored")
        types = {"v": "bigint"} if value is None else ("v",)
        sink = PostgresSink(dsn, table="stored", columns=types, create_table="if_missing")
        if await _written(sink, value):
            return REFUSED
        row: Any = await con.fetchrow("SELECT pg_typeof(v)::text, v FROM stored")
        kind, found = row
        found = json.loads(found) if kind == "jsonb" else found
        return _cell(kind, found, value)
    finally:
        await con.close()


async def in_clickhouse(server: EngineServer, value: Any, field: Field) -> str:
    kind = field.clickhouse
    server.run("DROP TABLE IF EXISTS stored")
    server.run(f"CREATE TABLE stored (v {kind}) ENGINE = MergeTree ORDER BY tuple()")
    if await _written(
        ClickHouseSink(HttpAccess(server.url, client_options=PLAIN), table="stored"), value
    ):
        return REFUSED
    ((text,),) = await asyncio.to_thread(server.rows, "SELECT toString(v) FROM stored")
    return _cell(
        kind, str(value) if text == str(value).removesuffix("+00:00") else text, str(value)
    )


async def in_parquet(value: Any, field: Field) -> str:
    with tempfile.TemporaryDirectory() as folder:
        sink = ParquetSink(Path(folder).as_uri(), schema={"v": field.parquet})
        if await _written(sink, value):
            return REFUSED
        (found,) = parquet.read_table(folder)["v"].to_pylist()
    if pa.types.is_map(field.parquet):
        found = dict(found)
    elif isinstance(value, uuid.UUID):
        found = uuid.UUID(bytes=found)
    return _cell(str(field.parquet), found, value)


async def in_sqlite(value: Any, field: Field) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
        with engine.begin() as con:
            con.exec_driver_sql(f"CREATE TABLE stored (v {field.sqlite})")
        sink = SqlSink(f"sqlite:///{path}", table="stored", columns=("v",))
        if await _written(sink, value):
            return REFUSED
        with engine.connect() as con:
            (found,) = con.exec_driver_sql("SELECT v FROM stored").one()
    return _cell(field.sqlite, found, value)


async def table(dsn: str, server: EngineServer) -> str:
    """The table, measured."""
    rows = HEAD
    stores: list[Callable[[Any, Field], Awaitable[str]]] = [
        in_json,
        lambda value, field: in_postgres(dsn, value, field),
        lambda value, field: in_clickhouse(server, value, field),
        in_parquet,
        in_sqlite,
    ]
    for field, value in zip(FIELDS, await decoded(), strict=True):
        cells = [await store(value, field) for store in stores]
        shown = repr(value).replace("datetime.", "")
        rows += f"| {' | '.join([field.avro, f'`{shown}`', *cells])} |\n"
    return rows


if __name__ == "__main__":
    with embedded_postgres() as postgres, running(EngineServer) as clickhouse:
        made = asyncio.run(table(postgres.dsn, clickhouse))
    text = PAGE.read_text("utf-8")
    begin = text.index(HEAD)
    PAGE.write_text(text[:begin] + made + text[text.index("\n\n", begin) + 1 :], "utf-8")
