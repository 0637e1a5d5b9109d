"""Bad rows fail alone, whatever their fault, and isolating them needs a bounded number of
statements.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.postgres.sink.postgres_help import batch_of, database, outcomes, proxied, written
from tests.properties import examples

from sluicegate import Outcome, PermanentError, RefusedError, send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

TABLE = """
    id int PRIMARY KEY, word varchar(10) NOT NULL CHECK (word <> 'bad'), n int2, j jsonb,
    parent int REFERENCES parents, later int REFERENCES parents DEFERRABLE INITIALLY DEFERRED
"""
NAMES = ("id", "word", "n", "j", "parent", "later")
BAD: dict[str, tuple[tuple[Any, ...], type[BaseException]]] = {
    "NUL in text": (("a\0b", 1, None, None, None), asyncpg.CharacterNotInRepertoireError),
    "too long": (("x" * 11, 1, None, None, None), asyncpg.StringDataRightTruncationError),
    "NOT NULL": ((None, 1, None, None, None), asyncpg.NotNullViolationError),
    "CHECK": (("bad", 1, None, None, None), asyncpg.CheckViolationError),
    "int overflow": (("x", 2**40, None, None, None), asyncpg.DataError),
    "wrong type": (("x", "one", None, None, None), asyncpg.DataError),
    "half a surrogate": (("\ud800", 1, None, None, None), asyncpg.DataError),
    "malformed JSON": (("x", 1, "{", None, None), asyncpg.InvalidTextRepresentationError),
    "foreign key": (("x", 1, None, 99, None), asyncpg.ForeignKeyViolationError),
    "deferred foreign key": (("x", 1, None, None, 99), asyncpg.ForeignKeyViolationError),
}


def good(number: int) -> tuple[Any, ...]:
    return (number, "good", 1, '{"a": 1}', 1, 1)


async def make_parents(dsn: str) -> None:
    con = await asyncpg.connect(dsn)
    try:
        await con.execute(
            "DROP TABLE IF EXISTS parents CASCADE; CREATE TABLE parents (id int PRIMARY KEY); "
            "INSERT INTO parents VALUES (1)"
        )
    finally:
        await con.close()


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
@pytest.mark.parametrize(("size", "staging"), [(5, 10_000), (100, 10_000), (100, 1)])
async def test_a_bad_row_fails_alone_with_its_cause(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, size: int, staging: int, mode: str
) -> None:
    """batcher/4b.5, whatever its fault."""
    await make_parents(embedded_postgres.dsn)
    async with (
        database(embedded_postgres.dsn, TABLE) as db,
        db.sink(NAMES, on_conflict=mode, staging_threshold=staging) as sink,
    ):
        for what, (rest, cause) in BAD.items():
            await db.con.execute(f"TRUNCATE {db.table}")
            items = [good(number) for number in range(size)]
            items[3] = (3, *rest)
            batch = batch_of(items)
            errors = await send(sink, batch)
            assert list(errors) == [3], what
            assert isinstance(errors[3], PermanentError), what
            causes = (cause, ValueError) if what.startswith("NUL") else cause
            assert isinstance(errors[3].__cause__, causes), what
            assert len(await db.rows("1")) == size - 1, what
            assert outcomes(batch).count(Outcome.DELIVERED) == size - 1, what


async def statements_for(
    embedded_postgres: EmbeddedPostgres,
    items: Sequence[Any],
    expected: Sequence[int],
    **options: Any,
) -> list[str]:
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word varchar(10)") as db,
        proxied(db.dsn) as (proxy, through),
    ):
        async with db.sink(dsn=through, **options) as sink:
            proxy.statements.clear()
            assert sorted(await written(sink, items)) == list(expected)
            assert len(await db.rows()) == len(items) - len(expected)
    bookkeeping = ("BEGIN", "COMMIT", "ROLLBACK", "CREATE", "SET", "SAVEPOINT", "SELECT")
    return [
        each.split()[0] for each in proxy.statements if each and not each.startswith(bookkeeping)
    ]


def with_bad(size: int, bad: Sequence[int], word: Any = "much too long") -> list[tuple[int, Any]]:
    return [(number, word if number in bad else "fine") for number in range(size)]


async def test_one_bad_row_among_1000_costs_two_writes(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """batcher/4b.5: the server names it."""
    assert await statements_for(embedded_postgres, with_bad(1000, [517]), [517]) == ["COPY"] * 2


async def test_three_scattered_bad_rows_cost_three_writes_a_staging_and_a_sifting(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """batcher/4b.5."""
    bad = [1, 500, 999]
    assert await statements_for(embedded_postgres, with_bad(1000, bad), bad) == [
        *["COPY"] * 4,
        "DO",
    ]


@pytest.mark.parametrize("count", [4, 1000])
async def test_any_number_of_bad_rows_costs_no_more(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, count: int
) -> None:
    """batcher/4b.5: the bound is five statements; one COPY per bad row would be `count`."""
    bad = list(range(0, 1000, 1000 // count))
    used = await statements_for(embedded_postgres, with_bad(1000, bad), bad)
    assert used == [*["COPY"] * 4, "DO"]


@pytest.mark.parametrize("count", [1, 40])
async def test_rows_that_cannot_be_encoded_are_all_found_at_once(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, count: int
) -> None:
    bad = list(range(0, 1000, 1000 // count))
    assert len(await statements_for(embedded_postgres, with_bad(1000, bad, word=5), bad)) == 2


async def test_rows_that_cannot_be_encoded_leave_no_lock_behind(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """A statement that asyncpg has prepared but never sent must not lock the table."""
    async with database(embedded_postgres.dsn) as db, db.sink() as sink:
        assert len(await written(sink, [(1, 2), (2, 3)])) == 2
        await db.con.execute(f"SET lock_timeout = '1s'; TRUNCATE {db.table}")


async def test_many_conflicts_cost_no_more(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    rows = [(number % 500, "x") for number in range(1000)]
    assert await statements_for(embedded_postgres, rows, range(500, 1000)) == [*["COPY"] * 4, "DO"]


async def test_a_batch_of_nothing_but_bad_rows_stores_nothing(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink() as sink:
        for bad in ("no number", None, 2**40):
            for size in (1, 60):
                errors = await written(sink, [(bad, "x")] * size)
                assert len(errors) == size
                assert all(isinstance(error, PermanentError) for error in errors.values())
        assert await db.rows() == []


async def test_a_trigger_may_refuse_a_row(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.word = 'no' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION refuse()
        """)
        try:
            async with db.sink() as sink:
                for start, size in ((0, 10), (100, 100)):
                    errors = await written(
                        sink,
                        [
                            (start + number, "no" if number % 4 == 1 else "yes")
                            for number in range(size)
                        ],
                    )
                    assert sorted(errors) == list(range(1, size, 4))
                    assert "not this one" in str(errors[1].__cause__)
        finally:
            await db.con.execute("DROP FUNCTION refuse CASCADE")


async def test_an_unknown_enum_label_fails_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    con = await asyncpg.connect(embedded_postgres.dsn)
    await con.execute("DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('glad', 'sad')")
    await con.close()
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word mood") as db,
        db.sink() as sink,
    ):
        errors = await written(
            sink, [(number, "odd" if number % 10 == 0 else "sad") for number in range(100)]
        )
        assert sorted(errors) == list(range(0, 100, 10))
        assert len(await db.rows()) == 90


@pytest.mark.parametrize(("kind", "bad"), [("numeric(5,2)", 123_456), ("below_ten", 50)])
async def test_a_key_that_does_not_fit_its_column_fails_alone_where_rows_are_replaced(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, kind: str, bad: int
) -> None:
    con = await asyncpg.connect(embedded_postgres.dsn)
    await con.execute(
        "DROP DOMAIN IF EXISTS below_ten CASCADE; CREATE DOMAIN below_ten AS int CHECK (value < 10)"
    )
    await con.close()
    async with (
        database(embedded_postgres.dsn, f"id {kind} PRIMARY KEY, word text") as db,
        db.sink(on_conflict="update") as sink,
    ):
        assert await written(sink, [(1, "old"), (2, "old")]) == {}
        assert [*await written(sink, [(2, "new"), (bad, "new"), (1, "new"), (3, "new")])] == [1]
        assert await db.rows() == [(1, "new"), (2, "new"), (3, "new")]


async def test_an_error_that_is_no_rows_fault_is_not_sifted(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Only permanent errors of rows are bisected: a statement without permission fails as a whole
    (batcher/4b.5).
    """
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute("DROP ROLE IF EXISTS reader")
        await db.con.execute(
            f"CREATE ROLE reader LOGIN PASSWORD 'reader'; GRANT SELECT ON {db.table} TO reader"
        )
        try:
            dsn = db.dsn.replace(db.dsn.partition("//")[2].partition("@")[0], "reader:reader")
            await db.con.execute(f"GRANT INSERT ON {db.table} TO reader")
            async with db.sink(dsn=dsn) as sink:
                await db.con.execute(f"REVOKE INSERT ON {db.table} FROM reader")
                errors = await written(sink, [(number, "x") for number in range(60)])
                assert {type(error) for error in errors.values()} == {RefusedError}
                assert {type(error.__cause__) for error in errors.values()} == {
                    asyncpg.InsufficientPrivilegeError
                }
        finally:
            await db.con.execute(f"REVOKE ALL ON {db.table} FROM reader; DROP ROLE reader")


def _shouted(value: object) -> str:
    return f'"{value}!"'


async def _with_codec(con: Any) -> None:
    await con.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=_shouted, decoder=str, format="text"
    )


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
async def test_a_codec_of_the_users_own_is_used_in_every_way(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    """asyncpg cannot COPY a type with a codec in text format."""
    ddl = "id int PRIMARY KEY, word jsonb CHECK (word <> '\"bad!\"'), text text"
    async with database(embedded_postgres.dsn, ddl) as db:
        async with db.sink(
            ("id", "word", "text"), connect_options={"init": _with_codec}, on_conflict=mode
        ) as sink:
            assert (
                await written(sink, [(number, {"not": "text"}, "x") for number in range(60)]) == {}
            )
            bad = [
                (
                    number + 100,
                    {3: "bad", 4: "bad", 9: 'no "JSON'}.get(number, "good"),
                    "\0" if number == 7 else "x",
                )
                for number in range(60)
            ]
            errors = await written(sink, bad)
            assert sorted(errors) == [3, 4, 7, 9]
            assert {type(error) for error in errors.values()} == {PermanentError}
            assert await written(sink, [(200, "good", "x")], maybe=[0]) == {}
        assert (
            await db.con.fetchval(f"SELECT count(*) FROM {db.table} WHERE word = '\"good!\"'") == 57
        )


values = st.sampled_from(["fine", "fine", "fine", "much too long", "\0", "bad", None, 7])
ids = st.integers(0, 15)  # few, so that keys are taken and repeated


@examples(20, long=100)
@given(
    rows=st.lists(st.tuples(ids, values), max_size=30),
    there=st.sets(ids, max_size=8),
    maybe=st.sets(st.integers(0, 29)),
    threshold=st.sampled_from([1, 10**6]),
    staging=st.sampled_from([1, 10**6]),
    mode=st.sampled_from(["error", "ignore", "update"]),
)
def test_every_item_is_answered_as_the_table_shows(
    embedded_postgres: EmbeddedPostgres,
    rows: list[Any],
    there: set[int],
    maybe: set[int],
    threshold: int,
    staging: int,
    mode: str,
) -> None:
    """batcher/4b.5, batcher/4b.11: in any mixture good rows are stored, bad rows are not, and a
    conflict is classified by its history.
    """
    ddl = "id int PRIMARY KEY, word varchar(10) NOT NULL CHECK (word <> 'bad')"

    async def run() -> None:
        options: dict[str, Any] = {
            "on_conflict": mode,
            "copy_threshold": threshold,
            "staging_threshold": staging,
            "pool_size": 1,
        }
        async with database(embedded_postgres.dsn, ddl) as db, db.sink(**options) as sink:
            await db.con.executemany(
                f"INSERT INTO {db.table} VALUES ($1, $2)", list(_before(there).items())
            )
            batch = batch_of(rows, [index for index in maybe if index < len(rows)])
            errors = await send(sink, batch)
            _compare(rows, there, maybe, mode, errors, outcomes(batch), dict(await db.rows()))

    asyncio.run(run())


def _before(there: set[int]) -> dict[int, str]:
    """The rows of other writers, and of earlier tries."""
    return {number: "fine" if number % 2 else "there" for number in there}


def _compare(
    rows: list[Any],
    there: set[int],
    maybe: set[int],
    mode: str,
    errors: dict[int, Any],
    ends: list[Outcome],
    table: dict[int, str],
) -> None:
    stored = _before(there)
    first: set[int] = set()
    for index, (number, word) in enumerate(rows):
        if word != "fine":
            is_replaced = mode == "update" and number in dict(rows[index + 1 :])
            assert index in errors or is_replaced, (
                "a bad row, of which the server gets to see none but the last of its key"
            )
            continue
        taken = number in stored
        if not taken or mode == "update":
            assert ends[index] is Outcome.DELIVERED
            stored[number] = "fine"
            first.add(number)
        elif mode == "ignore":
            assert ends[index] is (Outcome.DUPLICATE if index in maybe else Outcome.DELIVERED)
        elif index in maybe and number not in first:
            is_same = stored[number] == "fine"
            assert ends[index] is (Outcome.DUPLICATE if is_same else Outcome.UNKNOWN)
            first.add(number)
        else:
            assert index in errors, "its key was taken, and not by an earlier try of its own"
    assert table == stored
