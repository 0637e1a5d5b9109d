"""Every conflict mode through a PgBouncer in transaction mode, with other clients.

The table's own count and contents decide.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.pooler.crowd import crowd
from tests.postgres.sink.postgres_help import (
    Database,
    batch_of,
    database,
    outcomes,
    proxied,
    written,
)

from sluicegate import Batcher, DeadLetter, Limits, Outcome, Retry, UnknownOutcomeError, send, stack
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

WORKERS = 4
COLUMNS = ("id", "word", "version", "kind")
TABLE = "id int PRIMARY KEY, word text CHECK (word <> 'bad'), version int, kind {}"
MODES: dict[str, dict[str, Any]] = {
    "error": {},
    "ignore": {"on_conflict": "ignore"},
    "update": {"on_conflict": "update"},
    "version": {"on_conflict": "update", "version_column": "version"},
}


@asynccontextmanager
async def table(dsn: str) -> AsyncGenerator[Database]:
    """A table with a column of a type that asyncpg must look up."""
    async with database(dsn, "id int PRIMARY KEY") as db:
        kind = f"{db.table}_kind"
        await db.con.execute(
            f"CREATE TYPE {kind} AS ENUM ('a', 'b'); DROP TABLE {db.table}; "
            f"CREATE TABLE {db.table} ({TABLE.format(kind)})"
        )
        yield db


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        *((mode, 300) for mode in MODES),
        *((mode, 20) for mode in ("error", "update")),
        ("error", 1),
        *(pytest.param(mode, 12_000, marks=pytest.mark.long) for mode in MODES),
    ],
)
async def test_exactly_the_poison_rows_are_dead_letters(
    embedded_postgres: EmbeddedPostgres,
    bouncer: PgBouncer,
    real_clock: LoopClock,
    mode: str,
    size: int,
) -> None:
    poison = {size // 2, size // 3, size - 1} if size > 1 else set[int]()
    rows = [
        (number, "bad" if number in poison else f"word {number}", 1, "b") for number in range(size)
    ]
    letters: MemorySink[Any] = MemorySink()
    async with table(embedded_postgres.dsn) as db, crowd(bouncer.dsn):
        sink = db.sink(COLUMNS, dsn=bouncer.dsn, pool_size=WORKERS + 1, **MODES[mode])
        async with Batcher(
            stack(sink, Retry(), DeadLetter(letters)),
            limits=Limits(max_items=max(1, size // WORKERS), max_delay=0.01, workers=WORKERS),
        ) as batcher:
            await batcher.add_many(rows)
        stored = await db.rows()
        assert stored == [row for row in rows if row[0] not in poison]
        assert {letter.item[0] for letter in letters.items} == poison
        first = range(min(size, 300))
        async with sink:  # once more, with existing keys
            again = await written(sink, [(number, "again", 0, "a") for number in first])
        assert set(again) == (set(first) - poison if mode == "error" else set())
        replaced = MODES[mode].get("on_conflict") == "update" and mode != "version"
        assert (await db.rows())[: len(first)] == [
            (number, "again", 0, "a") if replaced or number in poison else rows[number]
            for number in first
        ]


@pytest.mark.parametrize("size", [5, 80, 300])
async def test_a_commit_without_an_answer_is_resolved_by_the_next_try(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock, size: int
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        proxied(bouncer.dsn) as (proxy, through),
        db.sink(dsn=through, staging_threshold=200) as sink,
    ):
        batch = batch_of([(number, "x") for number in range(size)])
        proxy.cut_answer = "COMMIT"
        assert {type(error) for error in (await send(sink, batch)).values()} == {
            UnknownOutcomeError
        }
        assert len(await db.rows()) == size
        assert await send(sink, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DUPLICATE}
        assert len(await db.rows()) == size


@pytest.mark.parametrize("size", [5, 80])
async def test_a_constraint_that_is_checked_at_the_commit_refuses_its_row_alone(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock, size: int
) -> None:
    columns = "id int PRIMARY KEY, word text UNIQUE DEFERRABLE INITIALLY DEFERRED"
    async with database(embedded_postgres.dsn, columns) as db:
        await db.con.execute(f"INSERT INTO {db.table} VALUES (-1, 'word 3')")
        async with db.sink(dsn=bouncer.dsn) as sink:
            errors = await written(sink, [(number, f"word {number}") for number in range(size)])
        assert set(errors) == {3}
        assert len(await db.rows()) == size


@pytest.mark.parametrize("size", [1, 300])
async def test_tables_are_created_and_grow_behind_a_pooler(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock, size: int
) -> None:
    async with database(embedded_postgres.dsn) as db, crowd(bouncer.dsn):
        await db.con.execute(f"DROP TABLE {db.table}")
        options: dict[str, Any] = {"create_table": "if_missing", "on_new_column": "add"}
        async with db.sink(("id",), dsn=bouncer.dsn, **options) as sink:
            for start, more in ((0, {}), (size, {"late": 1.5}), (2 * size, {})):
                items = [{"id": start + place, **more} for place in range(size)]
                assert await written(sink, items) == {}
        rows = await db.rows("1")
        assert rows == [(n, 1.5 if size <= n < 2 * size else None) for n in range(3 * size)]
