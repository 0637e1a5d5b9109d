"""Items that are changes: the table is what they make of it one by one, whatever the batches are."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("asyncpg")
from tests.postgres.sink.postgres_help import database  # noqa: E402

from sluicegate import (  # noqa: E402
    ArrowBatch,
    ConfigError,
    PermanentError,
    RowBatch,
    send,
    transaction,
)
from sluicegate.postgres import Changes, PostgresSink  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

SHAPE = "id int PRIMARY KEY, word text, tags int[], doc jsonb, version int NOT NULL DEFAULT 0"
COLUMNS = ("id", "word", "tags", "doc", "version")
CHANGES = Changes(op_column="op", present_column="has")
SCHEMA: Any = pa.schema(
    {
        "op": pa.string(),
        "has": pa.list_(pa.string()),
        "id": pa.int64(),
        "word": pa.string(),
        "tags": pa.list_(pa.int32()),
        "doc": pa.string(),
        "version": pa.int64(),
    }
)


def changes(chance: random.Random, count: int, *, in_order: bool) -> list[dict[str, Any]]:
    """Random changes of 12 keys; deletions have nothing but the key and the version."""
    found: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        version = number if in_order else chance.randrange(1, count)
        item: dict[str, Any] = dict.fromkeys(SCHEMA.names) | {
            "id": chance.randrange(12),
            "version": version,
        }
        item["op"] = chance.choice("cuurUdD")
        if item["op"] in "dD":
            found.append(item)
            continue
        tags = chance.choice([None, [], [number, None]])
        item |= {
            "word": chance.choice([None, f"w{number}"]),
            "tags": tags,
            "doc": f'{{"n": {number}}}',
        }
        if chance.random() < 0.5:
            item["has"] = chance.sample(["word", "tags", "doc"], chance.randrange(4))
        found.append(item)
    return found


def one_by_one(items: Sequence[dict[str, Any]], *, versions: bool) -> dict[int, tuple[Any, ...]]:
    """The rows that the changes leave."""
    table: dict[int, dict[str, Any]] = {}
    for item in items:
        row = table.get(item["id"])
        always = {"id", "version"} if versions else {"id"}
        has = always.union(COLUMNS if item["has"] is None else item["has"])
        if item["op"] in "dD":
            if row is not None and (not versions or row["version"] <= item["version"]):
                del table[item["id"]]
        elif row is None:
            absent: dict[str, Any] = dict.fromkeys(COLUMNS) | {"version": 0}
            table[item["id"]] = absent | {name: item[name] for name in has}
        elif not versions or row["version"] < item["version"]:
            row.update({name: item[name] for name in has})
    return {key: tuple(row[name] for name in COLUMNS) for key, row in table.items()}


@pytest.mark.parametrize("way", ["items", "columns", "transaction"])
@pytest.mark.parametrize("versioned", [False, True])
async def test_the_table_is_what_the_changes_make_of_it_one_by_one(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str, versioned: bool
) -> None:
    chance = random.Random(way)
    version: dict[str, Any] = {"version_column": "version"} if versioned else {}
    async with database(embedded_postgres.dsn, SHAPE) as db:
        async with db.sink(COLUMNS, on_conflict="update", changes=CHANGES, **version) as sink:
            for size in (1, 3, 20, 400, 7, 60):
                await db.con.execute(f"DELETE FROM {db.table}")
                items = changes(chance, 2 * size, in_order=True)
                halves = items[:size], items[size:]
                batches = [
                    ArrowBatch(pa.RecordBatch.from_pylist(half, SCHEMA))
                    if way == "columns"
                    else RowBatch(half)
                    for half in halves
                ]
                if way == "transaction":
                    async with transaction(sink) as within:
                        assert [await send(within, batch) for batch in batches] == [{}, {}]
                else:
                    assert [await send(sink, batch) for batch in batches] == [{}, {}]
                found = {row[0]: tuple(row) for row in await db.rows()}
                assert found == one_by_one(items, versions=versioned)


async def test_an_older_change_does_not_undo_a_newer_one(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    def item(key: int, op: str, version: int) -> dict[str, Any]:
        return {"id": key, "op": op, "version": version, "word": op}

    async with database(embedded_postgres.dsn, "id int PRIMARY KEY, word text, version int") as db:
        await db.con.execute(f"INSERT INTO {db.table} VALUES (1, 'old', 5), (2, 'old', 5)")
        changed: dict[str, Any] = {
            "changes": Changes(op_column="op"),
            "version_column": "version",
        }
        async with db.sink(("id", "word", "version"), on_conflict="update", **changed) as sink:
            batch = [
                item(1, "d", 4),
                item(2, "d", 6),
                item(2, "u", 3),
                item(3, "u", 9),
                item(3, "d", 8),
            ]
            assert await send(sink, RowBatch(batch)) == {}
        assert await db.rows() == [(1, "old", 5), (3, "u", 9)]


async def test_a_change_that_fails_fails_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """An unknown operation, a key that is NULL, a row that others refer to, a violated check, a name
    that is no column.
    """
    shape = "id int PRIMARY KEY, word text CHECK (word <> 'bad'), size int NOT NULL"
    async with database(embedded_postgres.dsn, shape) as db:
        await db.con.execute(
            f"INSERT INTO {db.table} SELECT n, 'old', n FROM generate_series(1, 9) AS n; "
            f"CREATE TEMP TABLE x (); CREATE TABLE refers_to_changed (id int REFERENCES {db.table}); "
            "INSERT INTO refers_to_changed VALUES (4)"
        )
        items = [
            {"op": "x", "id": 1},
            {"op": "d", "id": 1},
            {"op": "d", "id": None},
            {"op": "d", "id": 4},
            {"op": "u", "id": 4, "word": "after", "size": 0, "has": ["word"]},
            {"op": "d", "id": 5},
            {"op": "u", "id": 6, "word": "bad", "has": ["word"]},
            {"op": "u", "id": 7, "word": "new", "has": ["word"]},
            {"op": "u", "id": 77, "word": "without a size", "has": ["word"]},
            {"op": "u", "id": 8, "has": ["wrod"]},
            {"op": "u", "id": 9, "word": "bad", "size": 1},
            {"op": "u", "id": 2, "word": "whole", "size": 1},
        ]
        async with db.sink(("id", "word", "size"), on_conflict="update", changes=CHANGES) as sink:
            assert not sink.capabilities.key_prefix_safe
            errors = await send(sink, RowBatch(items))
            assert {type(error) for error in errors.values()} == {PermanentError}
            assert sorted(errors) == [0, 2, 3, 6, 8, 9, 10]
            found = {row[0]: row[1] for row in await db.rows()}
        await db.con.execute("DROP TABLE refers_to_changed")
    assert found == {2: "whole", 3: "old", 4: "after", 6: "old", 7: "new", 8: "old", 9: "old"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"changes": CHANGES}, "changes=.*needs on_conflict="),
        ({"changes": CHANGES, "on_conflict": "update", "row": tuple}, "changes=.*row="),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PostgresSink("postgresql://x/y", table="t", columns=("id",), **settings)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "op_column=None.*is needed, or present_column"),
        ({"op_column": ""}, "op_column=''.*must be a name"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Changes(**given)
