"""The columns of a class or of an Avro schema, and their types."""

from __future__ import annotations

import enum
from collections.abc import Mapping  # read at run time, as the others
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypedDict
from uuid import UUID

import pytest
from tests.postgres.sink.postgres_help import database

from sluicegate import ConfigError, RowBatch, send
from sluicegate.postgres import postgres_columns

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

Name = NewType("Name", str)


class Color(enum.StrEnum):
    RED = "red"


@dataclass
class Inner:
    x: int


@dataclass
class Everything:
    yes: bool
    number: int
    share: float | None
    amount: Annotated[Decimal, "money"]
    name: Name
    color: Color
    kind: Literal["a", "b"]
    body: bytes
    at: datetime
    day: date
    hour: time
    wait: timedelta
    ident: UUID
    tags: list[str]
    more: Mapping[str, Any]
    inner: Inner | None
    either: int | Decimal


TYPES = {
    "yes": "boolean",
    "number": "bigint",
    "share": "double precision",
    "amount": "numeric",
    "name": "text",
    "color": "text",
    "kind": "text",
    "body": "bytea",
    "at": "timestamptz",
    "day": "date",
    "hour": "time",
    "wait": "interval",
    "ident": "uuid",
    "tags": "jsonb",
    "more": "jsonb",
    "inner": "jsonb",
    "either": "numeric",
}


def test_type_hints_of_a_dataclass_give_its_columns() -> None:
    assert postgres_columns(Everything) == TYPES


def test_type_hints_of_a_model_and_of_a_dictionary_give_their_columns() -> None:
    pydantic = pytest.importorskip("pydantic")
    hints: dict[str, Any] = {
        "id": (int, ...),
        "at": (datetime | None, None),
        "inner": (dict[str, int], ...),
    }
    model = pydantic.create_model("Order", **hints)
    assert postgres_columns(model) == {"id": "bigint", "at": "timestamptz", "inner": "jsonb"}
    typed = TypedDict("typed", {"id": int, "two words": str | None})
    assert postgres_columns(typed) == {"id": "bigint", "two words": "text"}


async def test_an_object_is_stored_in_the_columns_of_its_class(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    at = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    item = Everything(
        yes=True,
        number=1,
        share=None,
        amount=Decimal("1.50"),
        name=Name("n"),
        color=Color.RED,
        kind="a",
        body=b"\0",
        at=at,
        day=at.date(),
        hour=time(1),
        wait=timedelta(2),
        ident=UUID(int=7),
        tags=["a"],
        more={"k": [1]},
        inner=Inner(1),
        either=3,
    )
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(f"DROP TABLE {db.table}")
        sink = db.sink(
            postgres_columns(Everything), create_table="if_missing", conflict_columns=("number",)
        )
        async with sink:
            assert await send(sink, RowBatch([item])) == {}
        (row,) = await db.con.fetch(f"SELECT * FROM {db.table}")
        values = {each.name: getattr(item, each.name) for each in fields(Everything)}
        values |= {"color": "red", "tags": '["a"]', "more": '{"k": [1]}', "inner": '{"x": 1}'}
        assert dict(row) == values


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": ["null", "int"], "default": None},
        {"name": "ratio", "type": "float"},
        {"name": "share", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "note", "type": ["string", "null"]},
        {"name": "body", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 16}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
        {"name": "other_kind", "type": "shop.Kind"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
        {"name": "ident", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "hour", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "unknown", "type": {"type": "long", "logicalType": "mine"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "order", "type": ["null", "Order"]}],
                },
            },
        },
        {"name": "first", "type": ["null", "Line"]},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
        {"name": "number", "type": ["int", "double"]},
    ],
}


def test_an_avro_record_gives_its_columns() -> None:
    assert postgres_columns(AVRO) == {
        "id": "bigint",
        "count": "integer",
        "ratio": "real",
        "share": "double precision",
        "ok": "boolean",
        "note": "text",
        "body": "bytea",
        "hash": "bytea",
        "kind": "text",
        "other_kind": "text",
        "price": "numeric(12, 2)",
        "ident": "uuid",
        "day": "date",
        "hour": "time",
        "at": "timestamptz",
        "local": "timestamp",
        "unknown": "bigint",
        "lines": "jsonb",
        "first": "jsonb",
        "labels": "jsonb",
        "number": "double precision",
    }


class Vague:
    id: int
    thing: Any
    mixed: int | str


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (Vague, r"\['thing', 'mixed'\]"),
        ({"type": "array", "items": "int"}, "schema of a record"),
        ({"type": "record", "fields": [{"name": "a", "type": ["int", "string"]}]}, "'a'"),
        ([("id", int)], "class with type hints"),
    ],
)
def test_a_field_without_a_column_type_is_named(schema: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        postgres_columns(schema)
