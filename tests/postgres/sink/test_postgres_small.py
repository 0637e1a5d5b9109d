"""Small batches: one `INSERT` with a parameter per value.

White box: the choice of a statement, and the statements that a connection keeps.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.sink.postgres_help import Database, batch_of, column_of, database, written

from sluicegate import PermanentError, send, transaction
from sluicegate.postgres import PostgresSink
from sluicegate.postgres.client.access import StatementCache
from sluicegate.postgres.sink.plan import TablePlan
from sluicegate.postgres.sink.strategy import STALE, Chooser, Sizes, WriteStrategy
from sluicegate.postgres.sink.table import Table
from sluicegate.sinks import Unit

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


def small(db: Database, **options: Any) -> PostgresSink:
    return db.sink(statement="values", **options)


# -- which numbers of rows have a statement --------------------------------------------------------


def test_a_number_of_rows_keeps_its_statement_as_long_as_it_is_used() -> None:
    sizes = Sizes(2)
    assert [sizes.take(rows) for rows in (5, 7, 9, 5, 9, 7)] == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]


def test_a_number_that_was_not_seen_for_long_makes_room_for_another() -> None:
    sizes = Sizes(2)
    assert sizes.take(5)
    for _ in range(STALE):
        assert sizes.take(7)
    assert sizes.take(9)
    assert not sizes.take(5), "7 and 9 are in use"
    assert not Sizes(0).take(1)


def plan_of(columns: int) -> TablePlan:
    names = tuple(f"c{number}" for number in range(columns))
    found = tuple(column_of("bigint", name) for name in names)
    return TablePlan(
        table=Table("t", "s", found, ()),
        columns=names,
        mode="error",
        target=None,
        key=None,
        update_columns=(),
        version=None,
        reads_text=True,
    )


@pytest.mark.parametrize(
    ("strategy", "columns", "rows", "cache", "expected"),
    [
        ((None, None), 4, 49, (100, math.inf), "values"),
        ((None, None), 4, 50, (100, math.inf), "copy"),
        ((None, None), 4, 1_000, (100, math.inf), "copy"),
        ((20, None), 4, 20, (100, math.inf), "copy"),
        ((None, None), 40, 30, (100, math.inf), "unnest"),
        ((None, None), 40, 60, (100, math.inf), "copy"),
        ((None, None), 4, 30, (100, 200), "unnest"),
        ((None, None), 4, 30, (2, math.inf), "unnest"),
    ],
    ids=str,
)
def test_the_statement_depends_on_rows_parameters_and_the_cache(
    strategy: tuple[int | None, int | None],
    columns: int,
    rows: int,
    cache: tuple[int, float],
    expected: str,
) -> None:
    """An uncached statement would be prepared in each write."""
    made = StatementCache(size=cache[0], longest=cache[1])
    assert Chooser(WriteStrategy.of(*strategy), made).choose(plan_of(columns), rows) == expected


async def test_many_sizes_do_not_fill_the_cache_of_a_connection(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    options = {"statement_cache_size": 30}
    async with (
        database(embedded_postgres.dsn, "id serial, word text") as db,
        db.sink(("word",), pool_size=1, connect_options=options) as sink,
    ):
        for size in [*range(1, 41)] * 2:
            assert await written(sink, [("x",)] * size) == {}
        connections = sink._opened().connections  # pyright: ignore[reportPrivateUsage]
        async with connections.lent() as con:
            found = await con.fetch("SELECT statement FROM pg_prepared_statements")
        kept = [row[0] for row in found if row[0].startswith("INSERT")]
        assert len(kept) == 11, "ten sizes, and the arrays of the others"
        assert len(await db.rows()) == 40 * 41


# -- the stored rows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "equal", "other"),
    [
        ("int", (1, 1), 2),
        ("numeric", (Decimal("1.0"), Decimal("1.00")), Decimal(2)),
        ("char(3)", ("a", "a "), "b"),  # differ in Python only
        ("int[]", ([1], [1]), [2]),  # cannot be hashed
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [None, "nr"])
async def test_of_several_rows_of_one_key_the_last_one_counts(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    key: str,
    equal: tuple[Any, Any],
    other: object,
    version: str | None,
) -> None:
    first, second = equal
    options = {"on_conflict": "update", "version_column": version}
    async with (
        database(embedded_postgres.dsn, f"id {key} PRIMARY KEY, nr int, word text") as db,
        small(db, columns=("id", "nr", "word"), **options) as sink,
    ):
        for _ in range(2):
            rows = [(first, 3, "a"), (other, 1, "b"), (second, 2, "c")]
            assert await written(sink, rows) == {}
            word = "c" if version is None else "a"
            assert {row[2] for row in await db.rows()} == {"b", word}


async def test_keys_that_hold_null_are_stored(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, "id int UNIQUE, word text") as db:
        for mode in ("update", "ignore"):
            rows = [(None, "a"), (None, "b"), (1, "c")]
            async with small(db, on_conflict=mode, conflict_columns=("id",)) as sink:
                assert await written(sink, rows) == {}
            assert len(await db.rows()) == 3
            await db.con.execute(f"TRUNCATE {db.table}")


async def test_a_value_too_long_is_refused_and_not_cut(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Where rows of one key are ranked, the parameters have base types."""
    async with database(embedded_postgres.dsn, "id int PRIMARY KEY, word varchar(3)") as db:
        for mode, key in (("error", 9), ("ignore", 9), ("update", 0)):
            rows = [(0, "abc"), (1, "abcd"), (key, "xyz")]
            async with small(db, on_conflict=mode) as sink:
                errors = await written(sink, rows)
            assert list(errors) == [1]
            assert isinstance(errors[1], PermanentError)
            assert {word for _, word in await db.rows()} <= {"abc", "xyz"}
            assert len(await db.rows()) == (1 if mode == "update" else 2)
            await db.con.execute(f"TRUNCATE {db.table}")


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
@pytest.mark.parametrize("statement", ["auto", "values"])
async def test_a_bad_row_fails_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, statement: str
) -> None:
    """Found by asyncpg, by the sink, or by the server."""
    async with (
        database(embedded_postgres.dsn) as db,
        db.sink(on_conflict=mode, statement=statement) as sink,
    ):
        bads: list[Any] = ["text", 2**40, 1.5, None]
        for bad in bads:
            await db.con.execute(f"TRUNCATE {db.table}")
            errors = await written(sink, [(1, "a"), (bad, "b"), (2, "c"), (3, "d\0"), (4, "e")])
            assert list(errors) == [1, 3], bad
            assert all(isinstance(error, PermanentError) for error in errors.values())
            assert await db.rows() == [(1, "a"), (2, "c"), (4, "e")], bad


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
async def test_statements_that_are_not_prepared_do_the_same(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        small(db, on_conflict=mode, prepared_statements=False) as sink,
    ):
        for _ in range(2):
            errors = await written(sink, [(1, "a"), (2, "b"), (1, "c"), (3, "d\0")])
            assert 3 in errors
        assert dict(await db.rows()) == {1: "c" if mode == "update" else "a", 2: "b"}


async def test_in_a_transaction_a_bad_row_keeps_no_other_out(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, small(db) as sink:
        unit = Unit(application=db.table, version=1)
        async with transaction(sink, unit) as within:
            for start in (0, 10):
                errors = await send(
                    within, batch_of([(start, "a"), (start, "b"), (start + 1, "c")])
                )
                assert list(errors) == [1]
        assert [number for number, _ in await db.rows()] == [0, 1, 10, 11]
