"""P-T19: types that `PostgresSink` declares as accepted are stored unchanged, and the others are
refused with advice.

White box: the question of refused columns is that of Spark's part.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
asyncpg = pytest.importorskip("asyncpg")
from sluicegate import ArrowBatch, DeadLetter, FanOut, Timeout, send, stack  # noqa: E402
from sluicegate.postgres import PostgresSink  # noqa: E402
from sluicegate.sinks import (  # noqa: E402
    Combine,
    MemorySink,
    Router,
)
from sluicegate.spark.destination import refused_columns  # noqa: E402

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

TABLE = (
    "smallint", "integer", "bigint", "real", "double precision", "numeric", "boolean", "text", "varchar(9)", "date", "timestamp",
    "timestamptz", "time", "interval", "bytea", "uuid", "jsonb", "integer[]", "text[]", "numeric[]", "mood",
)  # fmt: skip
QUICK = {"integer", "numeric", "text", "timestamptz", "bytea", "uuid", "jsonb", "integer[]"}
"""A type of each sort; the others run with the long tests."""
ID = "12345678-1234-5678-1234-567812345678"
MOMENT = dt.datetime(2026, 1, 2, 3)
ARROW: dict[str, tuple[Any, Any]] = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), 1),
    "int64": (pa.int64(), 1),
    "float": (pa.float32(), 1.5),
    "double": (pa.float64(), 1.5),
    "decimal": (pa.decimal128(12, 2), Decimal("5.25")),
    "whole decimal": (pa.decimal128(12, 0), Decimal(5)),
    "string": (pa.string(), "x"),
    "binary": (pa.binary(), b"x"),
    "date": (pa.date32(), dt.date(2026, 1, 2)),
    "timestamp": (pa.timestamp("us"), MOMENT),
    "moment": (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=dt.UTC)),
    "time": (pa.time64("ns"), dt.time(1, 2, 3)),
    "duration": (pa.duration("us"), dt.timedelta(seconds=3)),
    "integers": (pa.list_(pa.int32()), [1]),
    "grid": (pa.list_(pa.list_(pa.int32())), [[1, 2]]),
    "strings": (pa.list_(pa.string()), ["a"]),
    "struct": (pa.struct([("a", pa.int32())]), {"a": 1}),
    "structs": (pa.list_(pa.struct([("a", pa.int32())])), [{"a": 1}]),
    "map": (pa.map_(pa.string(), pa.int32()), [("a", 1)]),
    "null": (pa.null(), None),
}
FITTING = {"uuid": ID, "jsonb": "1", "mood": "ok"}
"""Texts that these types accept."""


def same(found: Any, given: Any) -> bool:
    """Whether two values are equal as numbers, or as a date and its midnight."""
    if isinstance(given, dt.datetime) and isinstance(found, dt.datetime):
        return found.replace(tzinfo=None) == given.replace(tzinfo=None)
    if type(given) is dt.date and isinstance(found, dt.datetime):
        return found.replace(tzinfo=None) == dt.datetime(given.year, given.month, given.day)
    return bool(found == given or str(found) == given)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in QUICK else (pytest.mark.long,)) for kind in TABLE],
)
def test_what_is_taken_is_written_as_it_was(embedded_postgres: EmbeddedPostgres, kind: str) -> None:
    """Refused types would have been refused for every row, or have been changed."""

    async def run() -> list[str]:
        con = await asyncpg.connect(embedded_postgres.dsn)
        await con.execute("DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('ok')")
        await con.execute(f"DROP TABLE IF EXISTS one_type; CREATE TABLE one_type (v {kind})")
        wrong: list[str] = []
        async with PostgresSink(
            embedded_postgres.dsn, table="one_type", columns=("v",), pool_size=1
        ) as sink:
            for name, (arrow, plain) in ARROW.items():
                value = FITTING.get(kind, plain) if name == "string" else plain
                batch = ArrowBatch(pa.record_batch({"v": pa.array([value], arrow)}))
                taken = not sink.refused_columns(batch.record_batch.schema)
                await con.execute("TRUNCATE one_type")
                written = not await send(sink, batch) and same(
                    await con.fetchval("SELECT v FROM one_type"), value
                )
                if taken and not written:
                    wrong.append(name)
        await con.close()
        return wrong

    assert asyncio.run(run()) == []


def refusals(dsn: str, table: str, **columns: Any) -> dict[str, str]:
    schema = pa.schema(list(columns.items()))

    async def run() -> dict[str, str]:
        con = await asyncpg.connect(dsn)
        await con.execute(f"DROP TABLE IF EXISTS judged; CREATE TABLE judged ({table})")
        await con.close()
        async with PostgresSink(dsn, table="judged", columns=tuple(columns)) as sink:
            return dict(sink.refused_columns(schema))

    return asyncio.run(run())


def test_what_would_come_back_as_something_else_is_refused(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    found = refusals(
        embedded_postgres.dsn,
        "a integer, b date, c bigint, d boolean, e text, f text, g uuid, h text, i integer[], j jsonb, k timestamptz, l bytea",
        a=pa.float64(), b=pa.timestamp("us"), c=pa.timestamp("us"), d=pa.int32(), e=pa.int64(), f=pa.binary(), g=pa.binary(),
        h=pa.list_(pa.string()), i=pa.list_(pa.string()), j=pa.struct([("x", pa.int8())]), k=pa.string(), l=pa.string(),
    )  # fmt: skip
    assert found == {
        "a": "does not fit into integer; cast it first",
        "b": "does not fit into date; cast it first",
        "c": "does not fit into bigint; cast it first",
        "d": "does not fit into boolean; cast it first",
        "e": "does not fit into text; cast it first",
        "f": "does not fit into text; cast it first",
        "g": "does not fit into uuid; cast it first",
        "h": "an array does not fit into text; write to_json(h)",
        "i": "its elements do not fit into integer[]; cast them first",
        "j": "no column takes nested values; write to_json(j) into a json, jsonb or text column",
        "k": "does not fit into timestamp with time zone; cast it first",
        "l": "does not fit into bytea; cast it first",
    }


def test_the_question_goes_the_way_of_the_items() -> None:
    """Through decorators and to every branch, but not to the dead letters, whose records are not
    items.
    """
    nowhere = "postgresql://nowhere.invalid/x"
    schema = pa.schema([("a", pa.struct([("x", pa.int8())])), ("b", pa.int8())])
    one, two = (
        PostgresSink(nowhere, table="t", columns=columns) for columns in (("a",), ("b", "c"))
    )
    assert set(refused_columns(stack(one, Timeout(1.0)), schema)) == {"a"}
    assert set(refused_columns(FanOut(one, two), schema)) == {"a", "c"}
    assert set(refused_columns(Router(lambda _: "x", {"x": one, "y": two}), schema)) == {"a", "c"}
    assert refused_columns(stack(MemorySink(), DeadLetter(one)), schema) == {}
    assert (
        refused_columns(Combine(MemorySink(), key=id, merge=lambda one, other: one), schema) == {}
    )
    assert (
        refused_columns(
            PostgresSink(nowhere, table="t", columns=("a",), row=lambda item: (item["b"],)), schema
        )
        == {}
    )
