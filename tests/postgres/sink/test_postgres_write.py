"""Rows in a real table: every statement, every conflict mode, and the use of connections."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import (
    batch_of,
    database,
    outcomes,
    proxied,
    until_blocked,
    written,
)

from sluicegate import Batcher, Outcome, PermanentError, RefusedError, send
from sluicegate.postgres import PostgresAccess, PostgresSink

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

SIZES = [1, 3, 49, 50, 500]
WAYS: dict[str, dict[str, Any]] = {
    "one by one": {"copy_threshold": 10**9},
    "arrays": {"copy_threshold": 1, "staging_threshold": 10**9},
    "staging": {"copy_threshold": 1, "staging_threshold": 1},
}
NOW = datetime(2024, 5, 1, tzinfo=UTC)


def words(count: int, word: str = "word") -> list[tuple[int, str]]:
    return [(number, f"{word} {number}") for number in range(count)]


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
async def test_every_row_arrives_once_at_any_size(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    """B-T24, B-T25, batcher/B37, batcher/B39."""
    async with database(embedded_postgres.dsn) as db, db.sink(on_conflict=mode) as sink:
        for size in SIZES:
            await db.con.execute(f"TRUNCATE {db.table}")
            assert await written(sink, words(size)) == {}
            assert await db.rows() == words(size)


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        *((mode, "one by one") for mode in ("error", "ignore", "update")),
        ("ignore", "arrays"),
        ("update", "staging"),
    ],
)
async def test_more_values_than_parameters_are_possible(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, way: str
) -> None:
    """B-T24: 3 columns x 11,000 rows are 33,000 values; one asyncpg statement takes 32,767."""
    async with database(embedded_postgres.dsn, "id int PRIMARY KEY, word text, n int") as db:
        rows = [(number, "x", number) for number in range(11_000)]
        async with db.sink(("id", "word", "n"), on_conflict=mode, **WAYS[way]) as sink:
            assert await written(sink, rows) == {}
            assert await db.rows() == rows


async def test_copy_begins_at_the_threshold(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T25, batcher/B39."""
    async with database(embedded_postgres.dsn) as db, proxied(db.dsn) as (proxy, through):
        async with db.sink(dsn=through, copy_threshold=10) as sink:
            proxy.statements.clear()
            await written(sink, words(9))
            assert {each.split()[0] for each in proxy.statements} == {"INSERT"}
            proxy.statements.clear()
            await written(sink, [(number + 100, "x") for number in range(10)])
            assert [each.split()[0] for each in proxy.statements] == ["COPY"], (
                "which compares the types itself"
            )


@pytest.mark.parametrize("way", WAYS)
async def test_the_same_batch_twice_leaves_the_same_table(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """B-T24, B-T25, batcher/B38."""
    async with (
        database(embedded_postgres.dsn) as db,
        db.sink(on_conflict="ignore", **WAYS[way]) as sink,
    ):
        assert await written(sink, words(100)) == {}
        again = batch_of([*words(100, "changed"), (100, "new")])
        assert await send(sink, again) == {}
        assert await db.rows() == [*words(100), (100, "new")]
        assert set(outcomes(again)) == {Outcome.DELIVERED}, (
            "nothing was unknown, so nothing is called a duplicate"
        )


@pytest.mark.parametrize("way", WAYS)
async def test_an_update_replaces_and_the_last_of_a_key_counts(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """B-T24, batcher/B38: no "cannot affect row a second time"."""
    async with (
        database(embedded_postgres.dsn) as db,
        db.sink(on_conflict="update", **WAYS[way]) as sink,
    ):
        assert await written(sink, words(100)) == {}
        batch = batch_of([*words(100, "first"), *words(100, "last")])
        assert await send(sink, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DELIVERED}
        assert await db.rows() == words(100, "last")


@pytest.mark.parametrize("way", WAYS)
async def test_an_older_version_does_not_overwrite_a_newer_one(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """B-T24, batcher/B38."""
    async with database(embedded_postgres.dsn, "id int PRIMARY KEY, word text, version int") as db:
        async with db.sink(
            ("id", "word", "version"), on_conflict="update", version_column="version", **WAYS[way]
        ) as sink:
            assert await written(sink, [(number, "new", 2) for number in range(100)]) == {}
            assert await written(sink, [(number, "old", 1) for number in range(100)]) == {}
            assert {row[1:] for row in await db.rows()} == {("new", 2)}
            mixed = [
                (number, word, version)
                for number in range(100)
                for word, version in (("newest", 4), ("late", 3))
            ]
            assert await written(sink, mixed) == {}
            assert {row[1:] for row in await db.rows()} == {("newest", 4)}


async def test_text_that_is_too_long_is_refused_and_never_cut(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word varchar(3)") as db,
        db.sink(on_conflict="ignore") as sink,
    ):
        assert list(
            await written(
                sink, [(number, "four" if number == 7 else "two") for number in range(60)]
            )
        ) == [7]
        assert {row[1] for row in await db.rows()} == {"two"}


async def test_only_the_named_columns_are_updated(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, "id int PRIMARY KEY, word text, first text") as db:
        options: dict[str, Any] = {
            "on_conflict": "update",
            "conflict_columns": ["id"],
            "update_columns": ["word"],
        }
        async with db.sink(("id", "word", "first"), **options) as sink:
            for word in ("a", "b"):
                assert await written(sink, [(number, word, word) for number in range(60)]) == {}
            assert {row[1:] for row in await db.rows()} == {("b", "a")}


async def test_an_update_of_nothing_but_its_key_leaves_what_is_there(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY") as db,
        db.sink(("id",), on_conflict="update") as sink,
    ):
        for _ in range(2):
            assert await written(sink, [(number,) for number in range(60)]) == {}
        assert len(await db.rows("1")) == 60


async def test_rows_whose_key_holds_null_are_all_kept(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int UNIQUE, word text") as db,
        db.sink(on_conflict="update") as sink,
    ):
        assert await written(sink, [(None, "x")] * 60 + [(1, "a"), (1, "b")]) == {}
        assert len(await db.rows()) == 61
        assert (1, "b") in await db.rows()


@dataclass
class Event:
    id: int
    word: str


def shaped(shape: str, number: int) -> Any:
    shapes: dict[str, Any] = {
        "tuple": (number, "x"),
        "list": [number, "x"],
        "mapping": {"word": "x", "id": number, "more": None},
        "object": Event(number, "x"),
    }
    return shapes[shape] if shape in shapes else list(shapes.values())[number % 4]


def divided(item: dict[str, int]) -> tuple[int, str]:
    return item["n"] // item["by"], "x"


async def test_items_of_every_shape_become_rows(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink() as sink:
        for shape in ("tuple", "list", "mapping", "object", "mixed"):
            for size in (1, 60):
                await db.con.execute(f"TRUNCATE {db.table}")
                assert await written(sink, [shaped(shape, number) for number in range(size)]) == {}
                assert await db.rows() == [(number, "x") for number in range(size)], shape


async def test_types_of_every_kind_go_through_every_way(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    columns = (
        "id int PRIMARY KEY, t timestamptz, j jsonb, a int[], v varchar(5), n "
        "numeric(6,2), c char(3), b bytea, d positive"
    )
    row = (NOW, '{"k": 1}', [[1, 2], [3, 4]], "five5", 3, "abc", b"\0\1", 7)
    names = ("id", "t", "j", "a", "v", "n", "c", "b", "d")
    con = await asyncpg.connect(embedded_postgres.dsn)
    await con.execute(
        "DROP DOMAIN IF EXISTS positive CASCADE; CREATE DOMAIN positive AS int CHECK (VALUE > 0)"
    )
    await con.close()
    async with database(embedded_postgres.dsn, columns) as db:
        for mode in ("error", "ignore", "update"):
            async with db.sink(names, on_conflict=mode) as sink:
                await db.con.execute(f"TRUNCATE {db.table}")
                assert await written(sink, [(number, *row) for number in range(5)]) == {}
                assert await written(sink, [(number, *row) for number in range(100, 200)]) == {}
                bad = [
                    (number, *row[:-1], -1 if number % 10 == 0 else 1)
                    for number in range(1000, 1100)
                ]
                assert len(await written(sink, bad)) == 10
                assert len(await db.rows("1")) == 195


async def test_one_object_serves_many_writes_at_once_and_its_connections_come_back(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T25, batcher/B39: more writes than connections, failing ones among them."""
    async with database(embedded_postgres.dsn) as db, db.sink(pool_size=2) as sink:
        tries = [
            written(sink, [(number * 100 + each, "x") for each in range(60)] + [(-number, "\0")])
            for number in range(12)
        ]
        answers = await asyncio.gather(*tries)
        assert {tuple(errors) for errors in answers} == {(60,)}
        assert len(await db.rows()) == 720
        table = sink._table  # pyright: ignore[reportPrivateUsage]  # nothing public tells how many are at rest
        assert table is not None
        assert table.connections.idle == table.connections.pool.get_size() <= 2


async def test_a_cancelled_write_gives_its_connection_back_clean(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T25, batcher/B46: a lock on the table, writes that are cut while they wait for it, and the
    same connection afterwards.
    """
    async with (
        database(embedded_postgres.dsn) as db,
        db.sink(pool_size=1, on_conflict="ignore") as sink,
    ):
        locked = db.con.transaction()
        await locked.start()
        await db.con.execute(f"LOCK TABLE {db.table} IN ACCESS EXCLUSIVE MODE")
        for size in (5, 60):
            batch = batch_of(words(size))
            write = asyncio.create_task(send(sink, batch))
            await until_blocked(db.con, db.table)
            write.cancel()
            await asyncio.wait([write])
            assert write.cancelled()
            assert len(batch.maybe_applied) == size
            await until_blocked(db.con, db.table, is_blocked=False)
        await locked.rollback()
        assert await written(sink, words(60)) == {}
        assert await db.rows() == words(60), (
            "the cancelled writes have left nothing, and nothing half done"
        )


async def test_a_statement_timeout_is_transient(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The table accepts rows: only rows that another session is writing have to wait."""
    async with (
        database(embedded_postgres.dsn) as db,
        db.sink(statement_timeout=0.3, on_conflict="ignore") as sink,
    ):
        async with db.con.transaction():
            await db.con.execute(f"INSERT INTO {db.table} VALUES (7, 'word 7')")
            (error, *_) = (await written(sink, words(60))).values()
            assert isinstance(error, asyncpg.QueryCanceledError)
            answer = sink.classify(error)
            assert answer is not None
            assert answer.value == "transient"
        assert await written(sink, words(60)) == {}


async def test_a_dropped_table_refuses_the_batch_and_names_what_to_create(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink() as sink:
        await db.con.execute(f"DROP TABLE {db.table}")
        for size in (5, 60):
            errors = await written(sink, words(size))
            assert len(errors) == size
            assert {type(error) for error in errors.values()} == {RefusedError}
            assert isinstance(errors[0].__cause__, asyncpg.UndefinedTableError)
            assert f'create table "public"."{db.table}"' in str(errors[0])


async def test_an_altered_table_is_written_again_without_reopening(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(pool_size=1) as sink:
        assert await written(sink, words(60)) == {}
        await db.con.execute(
            f"ALTER TABLE {db.table} ALTER COLUMN id TYPE bigint, ADD COLUMN more int"
        )
        assert await written(sink, [(number + 2**40, "x") for number in range(60)]) == {}


async def test_hostile_names_are_only_names(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    schema, table = 'Odd "schema"; --', 'T"; DROP TABLE x; $p0$ , line 3'
    columns = ("Id Nr", 'na"me', "größe; --", "select", "r", "n", "o")
    quoted = [
        f'"{name}"' for name in (each.replace('"', '""') for each in (schema, table, *columns))
    ]
    path = f"{quoted[0]}.{quoted[1]}"
    con = await asyncpg.connect(embedded_postgres.dsn)
    try:
        await con.execute(f"DROP SCHEMA IF EXISTS {quoted[0]} CASCADE; CREATE SCHEMA {quoted[0]}")
        ddl = ", ".join(f"{name} text" for name in quoted[3:])
        await con.execute(
            f"CREATE TABLE {path} ({quoted[2]} int PRIMARY KEY, {ddl}, CHECK ({quoted[3]} <> "
            "'bad'))"
        )
        modes: tuple[Literal["error", "ignore", "update"], ...] = ("error", "ignore", "update")
        for mode in modes:
            async with PostgresSink(
                embedded_postgres.dsn, table=table, schema=schema, columns=columns, on_conflict=mode
            ) as sink:
                await con.execute(f"TRUNCATE {path}")
                rows = [(number, *"abcdef") for number in range(60)]
                assert await written(sink, rows[:5]) == {}
                assert await written(sink, rows[5:]) == {}
                assert (
                    await written(
                        sink,
                        rows[:0] + [(100 + number, *"abcdef") for number in range(60)],
                        maybe=[3],
                    )
                    == {}
                )
                bad = [
                    (1000 + number, "bad" if number % 7 == 0 else "fine", *"bcdef")
                    for number in range(60)
                ]
                assert sorted(await written(sink, bad)) == list(range(0, 60, 7))
                assert await con.fetchval(f"SELECT count(*) FROM {path}") == 171
    finally:
        await con.execute(f"DROP SCHEMA {quoted[0]} CASCADE")
        await con.close()


@pytest.mark.parametrize("awaited", [True, False])
async def test_a_function_may_make_the_pool_and_the_sink_closes_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, awaited: bool
) -> None:
    made: list[Any] = []

    async def later() -> Any:
        made.append(await asyncpg.create_pool(embedded_postgres.dsn, min_size=1, max_size=2))
        return made[0]

    def now() -> Any:
        made.append(asyncpg.create_pool(embedded_postgres.dsn, min_size=1, max_size=2))
        return made[0]

    async with database(embedded_postgres.dsn) as db:
        async with PostgresSink(
            PostgresAccess(pool=later if awaited else now),
            table=db.table,
            columns=("id", "word"),
            pool_size=2,
        ) as sink:
            assert await written(sink, words(60)) == {}
            assert not made[0].is_closing()
        assert made[0].is_closing()
        assert await db.rows() == words(60)


async def test_a_sink_pickled_while_open_gives_a_closed_description(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T45."""
    async with database(embedded_postgres.dsn) as db, db.sink() as sink:
        again = pickle.loads(pickle.dumps(sink))
        assert not again.is_open
        async with again, sink:
            assert await written(again, words(3)) == {}
        assert sink.is_open
        assert await written(sink, [(9, "x")]) == {}


async def test_a_batchers_rows_are_all_in_the_table_when_it_has_ended(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        sink = db.sink()
        async with Batcher(sink) as batcher:
            await batcher.add_many([*words(1200), (1200, "nul \0"), (1201, "x")])
        assert batcher.report is not None
        assert batcher.report.tally.delivered == 1201
        assert batcher.report.tally.rejected == 1
        assert len(await db.rows()) == 1201
        assert not sink.is_open


async def test_a_repeated_delivery_lands_once_by_the_keys_of_its_batch(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T39: with `item_keys` as a unique column, disjoint picks are both stored, the same pick is
    stored once, and keys are stable across retries.
    """
    async with (
        database(embedded_postgres.dsn, "id text PRIMARY KEY, word text") as db,
        db.sink(on_conflict="ignore") as sink,
    ):
        batch = batch_of(range(100))
        rows = [(key, "x") for key in batch.item_keys()]
        first, second = batch.pick(range(50)), batch.pick(range(50, 100))
        assert [*first.item_keys(), *second.item_keys()] == [key for key, _ in rows]
        for part in (first, second, first):
            assert await written(sink, [(key, "x") for key in part.item_keys()]) == {}
        assert len(await db.rows()) == 100


async def test_a_row_function_meets_the_server_too(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(row=divided) as sink:
        errors = await written(sink, [{"n": number, "by": number - 3} for number in (8, 3, 4)])
        assert list(errors) == [1]
        assert isinstance(errors[1], PermanentError)
        assert await db.rows() == [(1, "x"), (4, "x")]
