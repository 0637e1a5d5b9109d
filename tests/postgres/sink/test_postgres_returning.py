"""Rows returned by the server are assigned to the right items."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.postgres.sink.postgres_help import Database, batch_of, database, proxied, written
from tests.properties import examples

from sluicegate import (
    Batcher,
    ConfigError,
    Outcome,
    RowBatch,
    UnknownOutcomeError,
    WriteResult,
    send,
)

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.postgres import PostgresSink
    from sluicegate.testing import EmbeddedPostgres

SERIAL = "nr serial, id int PRIMARY KEY, word text"
WAYS: dict[str, dict[str, Any]] = {
    "at once": {"statement": "values"},
    "one by one": {"statement": "insert"},
    "arrays": {"statement": "unnest"},
    "staging": {"copy_threshold": 1, "staging_threshold": 1},
}


async def answered(sink: PostgresSink, batch: RowBatch[Any]) -> dict[int, Any]:
    """The details of each item in a write, besides its errors, which must be those that `send`
    would book.
    """
    answer = await sink.write(batch)
    assert isinstance(answer, WriteResult)
    assert not set(answer.errors) & set(answer.details)
    return dict(answer.details)


async def numbers(db: Database) -> dict[int, int]:
    return {row["id"]: row["nr"] for row in await db.con.fetch(f"SELECT id, nr FROM {db.table}")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
async def test_each_item_has_the_number_that_the_table_gave_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, way: str
) -> None:
    """B-T25, batcher/B37, batcher/B39: with any statement, in the items' order."""
    async with database(embedded_postgres.dsn, SERIAL) as db:
        async with db.sink(on_conflict=mode, returning=("nr", "id"), **WAYS[way]) as sink:
            for size in (1, 120):
                rows = [(1000 * size + number * 7 % 1000, "x") for number in range(size)]
                details = await answered(sink, batch_of(rows))
                given = await numbers(db)
                assert details == {
                    place: {"nr": given[row[0]], "id": row[0]} for place, row in enumerate(rows)
                }


@pytest.mark.parametrize("way", WAYS)
async def test_a_skipped_row_returns_nothing_and_shifts_nobody(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """batcher/B38: existing rows, and repetitions within the batch."""
    async with database(embedded_postgres.dsn, SERIAL) as db:
        await db.con.execute(
            f"INSERT INTO {db.table} (id, word) SELECT g, 'there' FROM generate_series(0, 60, 3) g"
        )
        async with db.sink(on_conflict="ignore", returning=["nr"], **WAYS[way]) as sink:
            rows = [(number, word) for number in range(60) for word in ("first", "second")]
            details = await answered(sink, batch_of(rows))
            given = await numbers(db)
            assert details == {
                place: {"nr": given[place // 2]} for place in range(0, 120, 2) if place // 2 % 3
            }
            words = {
                row["word"]
                for row in await db.con.fetch(f"SELECT word FROM {db.table} WHERE id % 3 > 0")
            }
            assert words == {"first"}


@pytest.mark.parametrize("way", ["arrays", "staging"])
async def test_the_row_that_counted_returns_and_an_older_one_does_not(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """B-T24, batcher/B38: of several versions in one batch, and against the table."""
    async with database(
        embedded_postgres.dsn, "id numeric(6,2) PRIMARY KEY, word text, version int"
    ) as db:
        options: dict[str, Any] = {
            "on_conflict": "update",
            "version_column": "version",
            "returning": ("word",),
        }
        async with db.sink(("id", "word", "version"), **options, **WAYS[way]) as sink:
            await answered(sink, batch_of([(1, "new", 5)]))
            rows = [(1, "old", 4), (2, "a", 1), (2, "b", 3), (2, "c", 2), (3, "d", 0)]
            assert await answered(sink, batch_of(rows)) == {2: {"word": "b"}, 4: {"word": "d"}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["update", pytest.param("ignore", marks=pytest.mark.long)])
async def test_a_key_that_the_table_rounds_still_finds_its_item(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, way: str
) -> None:
    async with database(
        embedded_postgres.dsn, "nr serial, id numeric(6,2) PRIMARY KEY, word text"
    ) as db:
        async with db.sink(on_conflict=mode, returning=("id",), **WAYS[way]) as sink:
            rows = [(Decimal(number) + Decimal("0.004"), "x") for number in range(60)]
            assert await answered(sink, batch_of(rows)) == {
                number: {"id": number} for number in range(60)
            }


async def test_one_by_one_every_row_that_was_written_returns(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, SERIAL) as db:
        async with db.sink(on_conflict="update", returning=("word",), statement="insert") as sink:
            rows = [(1, "a"), (2, "b"), (1, "c")]
            assert await answered(sink, batch_of(rows)) == {
                0: {"word": "a"},
                1: {"word": "b"},
                2: {"word": "c"},
            }


@pytest.mark.parametrize(
    ("way", "mode"),
    [("at once", "error"), ("one by one", "ignore"), ("arrays", "update"), ("staging", "error")],
)
async def test_bad_rows_fail_alone_and_the_others_keep_their_own_details(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, way: str
) -> None:
    """batcher/4b.5: rows that asyncpg refuses, and rows that the server refuses without naming
    them.
    """
    columns = "nr serial, id int PRIMARY KEY, word text CHECK (word <> 'bad')"
    async with database(embedded_postgres.dsn, columns) as db:
        async with db.sink(on_conflict=mode, returning=("nr",), **WAYS[way]) as sink:
            rows = [
                (number, {3: "bad", 50: "bad", 51: 7, 70: "\0"}.get(number, "fine"))
                for number in range(80)
            ]
            details = await answered(sink, batch_of(rows))
            given = await numbers(db)
            assert sorted(given) == [
                number for number in range(80) if number not in {3, 50, 51, 70}
            ]
            assert details == {number: {"nr": nr} for number, nr in given.items()}


async def test_a_duplicate_shows_the_row_that_the_earlier_try_stored(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T43, batcher/4b.11: the acknowledgement is lost, and the next attempt still returns every
    item's number.
    """
    async with database(embedded_postgres.dsn, SERIAL) as db, proxied(db.dsn) as (proxy, through):
        async with db.sink(dsn=through, returning=("nr",), statement="unnest") as sink:
            batch = batch_of([(number, "x") for number in range(60)])
            proxy.cut_answer = "INSERT"
            errors = await send(sink, batch)
            assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
            answer = await sink.write(batch)
            assert isinstance(answer, WriteResult)
            assert set(answer.outcomes.values()) == {Outcome.DUPLICATE}
            given = await numbers(db)
            assert answer.details == {number: {"nr": given[number]} for number in range(60)}
            again = batch_of([(0, "x"), (100, "x"), (101, "x"), (1, "not ours")], maybe=[0, 1])
            answer = await sink.write(again)
            assert isinstance(answer, WriteResult)
            given = await numbers(db)
            assert list(answer.errors) == [3], (
                "a conflict without an earlier try is the item's own fault"
            )
            assert answer.details == {
                0: {"nr": given[0]},
                1: {"nr": given[100]},
                2: {"nr": given[101]},
            }


@pytest.mark.parametrize("mode", ["error", "ignore"])
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("macaddr", ["08:00:2b:01:02:03", "no address", "08:00:2b:01:02:04"]),
        ("jsonb", ['{"a": 1}', "{", "[]"]),
        ("numeric(5,2)", [1, 123_456, 2]),
    ],
)
async def test_so_it_does_beside_a_key_that_does_not_fit_its_column(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    mode: str,
    kind: str,
    keys: list[Any],
) -> None:
    columns = f"nr serial, id {kind} PRIMARY KEY, word text"
    async with database(embedded_postgres.dsn, columns) as db:
        async with db.sink(on_conflict=mode, returning=("nr",)) as sink:
            rows = [(key, "x") for key in keys]
            assert await written(sink, rows[:1]) == {}
            answer = await sink.write(batch_of(rows, maybe=range(3)))
        assert isinstance(answer, WriteResult)
        assert list(answer.errors) == [1]
        assert answer.outcomes == {0: Outcome.DUPLICATE}
        first, second = (row[0] for row in await db.rows("nr"))
        assert answer.details == {0: {"nr": first}, 2: {"nr": second}}


@pytest.mark.parametrize(("mode", "size"), [("error", 3), ("ignore", 60), ("update", 60)])
async def test_a_key_of_a_domain_over_an_enum_is_found_again(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, size: int
) -> None:
    columns = "nr serial, id int PRIMARY KEY, word text"
    async with database(embedded_postgres.dsn, columns) as db:
        labels = [f"label {number}" for number in range(size)]
        await db.con.execute(
            "DROP TYPE IF EXISTS labels CASCADE;"
            f"CREATE TYPE labels AS ENUM ({', '.join(map(repr, labels))});"
            "CREATE DOMAIN few_labels AS labels;"
            f"ALTER TABLE {db.table} ALTER id TYPE few_labels USING NULL"
        )
        async with db.sink(on_conflict=mode, returning=("nr",)) as sink:
            rows = [(label, "x") for label in labels]
            assert await written(sink, rows[:2]) == {}
            answer = await sink.write(batch_of(rows, maybe=range(size)))
        assert isinstance(answer, WriteResult)
        assert not answer.errors
        assert [*answer.details] == [*range(size)]
        assert len(await db.rows("nr")) == size
        await db.con.execute(f"DROP TABLE {db.table}; DROP TYPE labels CASCADE")


async def test_a_trigger_that_keeps_rows_out_gives_nobody_anothers_number(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, SERIAL) as db:
        await db.con.execute(f"""
            CREATE OR REPLACE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.id = 1 THEN RETURN NULL; END IF; RETURN NEW; END $$;
            CREATE TRIGGER keep BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION keep_out()
        """)
        for statement, expected in (("unnest", set[int]()), ("insert", {0, 2})):
            async with db.sink(returning=("id",), statement=statement) as sink:
                await db.con.execute(f"TRUNCATE {db.table}")
                answer = await sink.write(batch_of([(number, "x") for number in range(3)]))
                assert ({} if answer is None else answer.details) == {
                    place: {"id": place} for place in expected
                }


async def test_an_array_column_can_return_too(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, "nr serial, id int PRIMARY KEY, word text[]") as db:
        for mode in ("error", "ignore", "update"):
            await db.con.execute(f"TRUNCATE {db.table}")
            async with db.sink(on_conflict=mode, returning=("id", "word")) as sink:
                details = await answered(
                    sink, batch_of([(number, ["a", str(number)]) for number in range(60)])
                )
                assert details == {
                    number: {"id": number, "word": ["a", str(number)]} for number in range(60)
                }


async def test_a_receipt_shows_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, SERIAL) as db:
        async with Batcher(db.sink(returning=("nr",))) as batcher:
            receipts = [await batcher.submit((number, "x")) for number in (5, 4, 3)]
        given = await numbers(db)
        assert [receipt.detail for receipt in receipts] == [
            {"nr": given[number]} for number in (5, 4, 3)
        ]


values = st.sampled_from(["fine", "much too long", "\0", "bad", None, 7])
ids = st.integers(0, 12)


@examples(15, long=100)
@given(
    rows=st.lists(st.tuples(ids, values | st.just("fine"), st.integers(0, 3)), max_size=25),
    there=st.sets(ids, max_size=4),
    maybe=st.sets(st.integers(0, 24)),
    way=st.sampled_from(sorted(WAYS)),
    mode=st.sampled_from(["error", "ignore", "update", "newer"]),
)
def test_whatever_is_mixed_nobody_has_anothers_row(
    embedded_postgres: EmbeddedPostgres,
    rows: list[Any],
    there: set[int],
    maybe: set[int],
    way: str,
    mode: str,
) -> None:
    """batcher/B38, batcher/4b.5, batcher/4b.11: the details of every item name its own row in the
    table.
    """
    ddl = (
        "id int PRIMARY KEY, word varchar(10) NOT NULL CHECK (word <> 'bad'), version int, tag int"
    )
    items = [(*row, tag) for tag, row in enumerate(rows)]
    conflicts: dict[str, Any] = (
        {"on_conflict": mode}
        if mode != "newer"
        else {"on_conflict": "update", "version_column": "version"}
    )

    async def run() -> None:
        async with database(embedded_postgres.dsn, ddl) as db:
            await db.con.executemany(
                f"INSERT INTO {db.table} VALUES ($1, 'there', 1, -1)",
                [(number,) for number in there],
            )
            options: dict[str, Any] = {
                **conflicts,
                **WAYS[way],
                "returning": ("tag", "id"),
                "pool_size": 1,
            }
            async with db.sink(("id", "word", "version", "tag"), **options) as sink:
                answer = await sink.write(
                    batch_of(items, [index for index in maybe if index < len(items)])
                )
            answer = answer or WriteResult(len(items))
            assert not set(answer.details) & set(answer.errors)
            for index, detail in answer.details.items():
                assert isinstance(detail, dict)
                assert detail["id"] == items[index][0]
                assert detail["tag"] == index or answer.outcomes[index] is Outcome.DUPLICATE
            stored = {
                row["tag"]
                for row in await db.con.fetch(f"SELECT tag FROM {db.table} WHERE tag >= 0")
            }
            assert stored <= set(answer.details)

    asyncio.run(run())


async def test_a_column_that_is_not_there_is_named(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, SERIAL) as db:
        with pytest.raises(ConfigError, match=r"returning=\['number'\]"):
            async with db.sink(returning=("nr", "number")):
                pass
