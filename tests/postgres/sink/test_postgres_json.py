"""Objects in json and jsonb columns: encoded on every path into the table, bad ones fail alone.

White box: the text of an error in a log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import asyncpg
import pyarrow as pa
import pytest
from pydantic import BaseModel
from tests.postgres.sink.postgres_help import batch_of, database, outcomes, written

from sluicegate import ArrowBatch, Outcome, PermanentError, send
from sluicegate._core.logs import for_log
from sluicegate.postgres import PostgresAccess

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

DDL = "id int PRIMARY KEY, word jsonb, doc json, many jsonb[], own own_document"
COLUMNS = ("id", "word", "doc", "many", "own")
DOMAIN = "DROP DOMAIN IF EXISTS own_document CASCADE; CREATE DOMAIN own_document AS jsonb CHECK (VALUE <> '13')"


@dataclass(slots=True)
class Point:
    x: int
    y: float | None = None


class Model(BaseModel):
    name: str


WAYS: dict[str, dict[str, Any]] = {
    "unnest": {"statement": "unnest"},
    "copy": {"statement": "copy"},
    "staging": {"statement": "copy", "on_conflict": "update"},
    "merge": {"on_conflict": "ignore", "copy_threshold": 1, "staging_threshold": 100},
    "few": {},
}


def row_of(number: int) -> tuple[Any, ...]:
    values = [
        {"a": [1, None, "é"], "n": number},
        [Point(1), {"deep": MappingProxyType({"p": Point(2, 2.5)})}],
        Model(name="ann"),
        number,
        True,
        None,
        '{"as": "text"}',
    ]
    value = values[number % len(values)]
    return (number, value, value, [{"n": number}, None, "[1]"], value)


def plain(value: Any) -> Any:
    """A value as the table shows it."""
    if isinstance(value, str):
        return json.loads(value)
    if isinstance(value, Model):
        return {"name": value.name}
    if isinstance(value, list) and value and isinstance(value[0], Point):
        return [{"x": 1, "y": None}, {"deep": {"p": {"x": 2, "y": 2.5}}}]
    return value


def decoded(row: tuple[Any, ...]) -> tuple[Any, ...]:
    one, *rest = row
    return (one, *([plain(e) for e in v] if isinstance(v, list) else plain(v) for v in rest))


@pytest.mark.parametrize("way", WAYS)
async def test_objects_become_json_on_every_way(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    rows = [row_of(number) for number in range(14)]
    options = WAYS[way]
    columns: tuple[str, ...] = COLUMNS
    ddl = DDL
    if options.get("statement") == "unnest" or way in {"staging", "merge"}:
        columns, ddl = ("id", "word", "doc"), "id int PRIMARY KEY, word jsonb, doc json"
        rows = [row[:3] for row in rows]
    con = await asyncpg.connect(embedded_postgres.dsn)
    await con.execute(DOMAIN)
    await con.close()
    async with database(embedded_postgres.dsn, ddl) as db, db.sink(columns, **options) as sink:
        assert await written(sink, rows) == {}
        found = [decoded(row) for row in await db.rows("1")]
    expected = [
        (n, plain(v), plain(v), *([[{"n": n}, None, [1]], plain(v)] if len(columns) > 3 else []))
        for n, v in ((row[0], row[1]) for row in rows)
    ]
    assert found == expected
    assert sum(row[1] is None for row in found) == 2, "None is NULL"


@pytest.mark.parametrize("statement", ["values", "unnest", "copy"])
async def test_a_value_without_json_fails_alone_and_logs_hold_no_value(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, statement: Any
) -> None:
    """NaN, an object of a plain class, lone surrogates, bytes; NUL, which jsonb cannot store; and a
    text that is not JSON.
    """
    bad: dict[int, Any] = {
        1: {"secret": float("nan")},
        3: object(),
        4: {"secret": "\ud800"},
        6: b"secret",
        7: {"secret": "a\0b"},
        9: "{secret",
    }
    rows = [(number, bad.get(number, {"n": number})) for number in range(11)]
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word jsonb") as db,
        db.sink(statement=statement) as sink,
    ):
        errors = await written(sink, rows)
        assert {*errors} == {*bad}
        assert {type(error) for error in errors.values()} == {PermanentError}
        assert not any("secret" in for_log(error) for error in errors.values())
        assert "column 'word'" in str(errors[1])
        assert [row[0] for row in await db.rows("1")] == [0, 2, 5, 8, 10]


async def test_a_document_is_not_blamed_for_a_bad_value_beside_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word jsonb") as db,
        db.sink() as sink,
    ):
        rows = [(0, {"n": 0}), (2**40, {"n": 1}), (2, {"n": 2})]
        assert {*await written(sink, rows)} == {1}
        assert [row[0] for row in await db.rows("1")] == [0, 2]


@pytest.mark.parametrize("way", ["columns", "row"])
async def test_nested_values_of_a_record_batch(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """They cannot be sent as columns, so they are sent as rows."""
    options: dict[str, dict[str, Any]] = {
        "columns": {},
        "row": {"row": lambda item: (item["id"], item["word"])},
    }
    nested = [{"a": [1, None], "t": "x"}, None, {"a": [], "t": "a\0b"}]
    batch = ArrowBatch(pa.record_batch({"id": [1, 2, 3], "word": pa.array(nested)}))
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word jsonb") as db,
        db.sink(**options[way]) as sink,
    ):
        assert {*await send(sink, batch)} == {2}
        assert await db.rows("1") == [(1, '{"a": [1, null], "t": "x"}'), (2, None)]


async def test_objects_are_resent_after_an_unknown_outcome(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word jsonb") as db,
        db.sink() as sink,
    ):
        await written(sink, [(1, {"n": 1})])
        batch = batch_of([(1, {"n": 1}), (2, {"n": 2})], maybe=[0, 1])
        assert await send(sink, batch) == {}
        assert outcomes(batch) == [Outcome.DUPLICATE, Outcome.DELIVERED]
        assert await db.rows("1") == [(1, '{"n": 1}'), (2, '{"n": 2}')]


async def test_a_column_that_became_json_meanwhile(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word text") as db,
        db.sink() as sink,
    ):
        await db.con.execute(f"ALTER TABLE {db.table} ALTER word TYPE jsonb USING NULL")
        assert await written(sink, [(1, {"n": 1}), (2, None)]) == {}
        assert await db.rows("1") == [(1, '{"n": 1}'), (2, None)]


async def _dumps(con: asyncpg.Connection[Any]) -> None:
    await con.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads, format="text"
    )


async def _binary(con: asyncpg.Connection[Any]) -> None:
    await con.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: b"\x01" + json.dumps(value).encode(),
        decoder=lambda value: json.loads(value[1:]),
        format="binary",
    )


async def _models(con: asyncpg.Connection[Any]) -> None:
    await con.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: json.dumps({"own": value}),
        decoder=json.loads,
    )


async def _as_given(con: asyncpg.Connection[Any]) -> None:
    await con.set_type_codec("jsonb", schema="pg_catalog", encoder=lambda value: value, decoder=str)


async def _nothing(con: asyncpg.Connection[Any]) -> None:
    """A hook that sets no JSON codec."""


@pytest.mark.parametrize(
    ("hook", "stored", "by_pool"),
    [
        (_dumps, {"n": 1}, False),
        (_dumps, {"n": 1}, True),
        (_binary, {"n": 1}, False),
        (_models, {"own": {"n": 1}}, True),
        (_as_given, {"n": 1}, False),
        (_nothing, {"n": 1}, True),
    ],
)
async def test_a_codec_of_the_users_encodes_by_itself(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    hook: Any,
    stored: Any,
    by_pool: bool,
) -> None:
    """Values are not encoded twice, in whatever format the codec encodes, also if the table is read
    again because of a bad row; `doc` keeps asyncpg's own codec.
    """
    dsn = embedded_postgres.dsn
    access = PostgresAccess(dsn, connect_options={"init": hook})
    if by_pool:
        access = PostgresAccess(pool=lambda: asyncpg.create_pool(dsn, init=hook, min_size=0))
    async with database(dsn, "id int PRIMARY KEY, word jsonb, doc json") as db:
        ways: list[dict[str, Any]] = [{}, {"copy_threshold": 1}]
        for way in ways:
            sink = db.sink(("id", "word", "doc"), dsn=access, **way)
            await db.con.execute(f"TRUNCATE {db.table}")
            async with sink:
                rows = [(1, {"n": 1}, {"n": 1}), (None, {"n": 1}, None), (2, {"n": 1}, [2])]
                assert {*await written(sink, rows)} == {1}
            found = await db.rows("1")
            assert [(n, json.loads(word), json.loads(doc)) for n, word, doc in found] == [
                (1, stored, {"n": 1}),
                (2, stored, [2]),
            ]
