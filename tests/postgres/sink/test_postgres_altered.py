"""An open sink continues when its table is altered, and when its prepared statements are lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.postgres.sink.postgres_help import (
    database,
    role,
    until_blocked,
    whole,
    written,
)

from sluicegate import (
    ArrowBatch,
    PermanentError,
    RefusedError,
    RowBatch,
    send,
)
from sluicegate.postgres import PostgresSink

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

# -- a table that changes --------------------------------------------------------------------------


CHANGES: dict[str, tuple[str, str, Any, Any]] = {
    "to a type that is sent as text": (
        "id int, word text",
        "ALTER COLUMN word TYPE macaddr USING NULL",
        "any",
        "08:00:2b:01:02:03",
    ),
    "from a type that is sent as text": (
        "id int, word money",
        "ALTER COLUMN word TYPE int USING 0",
        "1.50",
        7,
    ),
    "wider": (
        "id int, word varchar(5)",
        "ALTER COLUMN word TYPE varchar(500), ALTER COLUMN id TYPE bigint",
        "short",
        "x" * 400,
    ),
    "text to number": ("id int, word text", "ALTER COLUMN word TYPE int USING 0", "1", 7),
    "number to text": ("id int, word int", "ALTER COLUMN word TYPE text", 7, "seven"),
    "number to moment": (
        "id int, word text",
        "ALTER COLUMN word TYPE jsonb USING '{}'",
        "1",
        '{"a": 1}',
    ),
}


@pytest.mark.parametrize(
    "options",
    [{}, {"on_conflict": "ignore"}, {"on_conflict": "update", "staging_threshold": 1}],
    ids=str,
)
@pytest.mark.parametrize("what", list(CHANGES))
async def test_a_column_of_another_type_is_written_by_the_same_open_sink(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    what: str,
    options: dict[str, Any],
) -> None:
    columns, change, before, after = CHANGES[what]
    size = 5 if options.get("on_conflict") == "ignore" else 100
    async with (
        database(embedded_postgres.dsn, f"{columns}, UNIQUE (id)") as db,
        db.sink(pool_size=1, **options) as sink,
    ):
        assert await written(sink, [(number, before) for number in range(size)]) == {}
        await db.con.execute(f"ALTER TABLE {db.table} {change}")
        first = 2**40 if "bigint" in change else 1000
        assert await written(sink, [(number + first, after) for number in range(size)]) == {}
        assert await db.con.fetchval(f"SELECT count(*) FROM {db.table}") == 2 * size


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(
    "change", [("int", "real"), ("bigint", "double precision"), ("int", "bigint")]
)
async def test_rows_that_wait_for_an_alteration_are_encoded_by_the_types_after_it(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    change: tuple[str, str],
    columns: bool,
) -> None:
    """The types are compared once the other session has ended, not before."""
    before, after = change
    rows = [(number, number) for number in range(2 * 400)]
    batches: list[Any] = [RowBatch(rows[:400]), RowBatch(rows[400:])]
    if columns:
        batches = [
            ArrowBatch(
                pa.record_batch(dict(zip(("id", "word"), zip(*batch, strict=True), strict=True)))
            )
            for batch in batches
        ]
    async with (
        database(embedded_postgres.dsn, f"id int PRIMARY KEY, word {before}") as db,
        db.sink() as sink,
    ):
        assert await send(sink, batches[0]) == {}
        async with db.con.transaction():
            await db.con.execute(f"ALTER TABLE {db.table} ALTER COLUMN word TYPE {after}")
            write = asyncio.create_task(send(sink, batches[1]))
            await until_blocked(db.con, db.table)
        assert await write == {}
        assert await db.con.fetchval(f"SELECT count(*) FROM {db.table} WHERE word = id") == 800


async def test_a_column_that_became_wider_meanwhile_keeps_every_digit(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The statement for one row was prepared when the column had the digits of a real."""
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word real") as db,
        db.sink(pool_size=1) as sink,
    ):
        assert await written(sink, [(1, 0.5)]) == {}
        await db.con.execute(f"ALTER TABLE {db.table} ALTER COLUMN word TYPE double precision")
        assert await written(sink, [(2, 0.1)]) == {}
        assert await db.rows() == [(1, 0.5), (2, 0.1)]


@pytest.mark.parametrize("mode", ["error", "ignore"])
async def test_columns_are_not_taken_for_others_of_the_same_width(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    """In binary `COPY` the bytes of an integer are also valid for a real, and no error would
    occur.
    """
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word int") as db,
        db.sink(on_conflict=mode) as sink,
    ):

        def columns(start: int) -> ArrowBatch:
            numbers = pa.array(range(start, start + 100), pa.int32())
            return ArrowBatch(pa.record_batch({"id": numbers, "word": numbers}))

        assert await send(sink, columns(0)) == {}
        await db.con.execute(f"ALTER TABLE {db.table} ALTER COLUMN word TYPE real")
        assert await send(sink, columns(100)) == {}
        assert await send(sink, columns(200)) == {}
        assert await db.con.fetchval(f"SELECT count(*) FROM {db.table} WHERE word = id") == 300
        await db.con.execute(f"ALTER TABLE {db.table} RENAME TO {db.table}_aside")
        refused = (await send(sink, columns(300)))[0]
        assert isinstance(refused, RefusedError)
        assert "create table" in refused.repair
        await db.con.execute(f"ALTER TABLE {db.table}_aside RENAME TO {db.table}")
        assert await send(sink, columns(300)) == {}


async def test_a_view_and_row_security_that_comes_later_are_written_without_copy(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        async with db.sink(dsn=writer.dsn) as sink:
            assert await written(sink, [(number, "x") for number in range(100)]) == {}
            await db.con.execute(
                f"ALTER TABLE {db.table} ENABLE ROW LEVEL SECURITY; CREATE POLICY all_of_it ON "
                f"{db.table} USING (true)"
            )
            assert await written(sink, [(number, "x") for number in range(100, 200)]) == {}
            numbers = pa.array(range(200, 300), pa.int32())
            columns = ArrowBatch(pa.record_batch({"id": numbers, "word": pa.array(["x"] * 100)}))
            assert await send(sink, columns) == {}
        await db.con.execute(f"CREATE VIEW {db.table}_view AS SELECT * FROM {db.table}")
        async with PostgresSink(db.dsn, table=f"{db.table}_view", columns=("id", "word")) as sink:
            assert await written(sink, [(number, "x") for number in range(300, 400)]) == {}
        assert len(await db.rows()) == 400


async def test_a_column_that_the_server_computes_now_refuses_the_batch(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink() as sink:
        change = "DROP COLUMN word, ADD COLUMN word text GENERATED ALWAYS AS ('x') STORED"
        await db.con.execute(f"ALTER TABLE {db.table} {change}")
        assert 'make column "word"' in whole(await written(sink, [(1, "x")]), 1).repair


async def test_a_row_is_not_blamed_while_the_table_cannot_be_looked_at(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Its schema is hidden, or the functions that report permissions are."""
    async with (
        database(embedded_postgres.dsn) as db,
        role(db) as writer,
        db.sink(dsn=writer.dsn, pool_size=1) as sink,
    ):
        assert await written(sink, [(1, "x")]) == {}
        await db.con.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
        try:
            assert (
                "grant USAGE on schema public"
                in whole(await written(sink, [("no number", "x"), (2, "x")]), 2).repair
            )
        finally:
            await db.con.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
        await db.con.execute(f"""
            ALTER TABLE {db.table} ENABLE ROW LEVEL SECURITY;
            CREATE POLICY none ON {db.table} WITH CHECK (false)
        """)
        function = "FUNCTION pg_catalog.has_column_privilege(oid, smallint, text)"
        await db.con.execute(f"REVOKE EXECUTE ON {function} FROM PUBLIC")
        try:
            assert "the lookup failed" in whole(await written(sink, [(2, "x")]), 1).repair
        finally:
            await db.con.execute(f"GRANT EXECUTE ON {function} TO PUBLIC")
        errors = await written(sink, [("no number", "x"), (2, "x")])
        assert {type(error) for error in errors.values()} == {PermanentError}


# -- prepared statements ---------------------------------------------------------------------------


async def _forget(con: Any) -> None:
    await con.execute("DEALLOCATE ALL")


@pytest.mark.parametrize("options", [{"statement": "values"}, {"statement": "unnest"}], ids=str)
async def test_a_pooler_that_loses_prepared_statements_is_not_noticed(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, options: dict[str, Any]
) -> None:
    async with database(
        embedded_postgres.dsn, "id int PRIMARY KEY, word text CHECK (word <> 'bad')"
    ) as db:
        async with db.sink(connect_options={"setup": _forget}, pool_size=1, **options) as sink:
            for start in range(0, 300, 60):
                errors = await written(
                    sink, [(start + number, "bad" if number == 3 else "x") for number in range(60)]
                )
                assert sorted(errors) == [3]
            assert len(await db.rows()) == 59 * 5
            assert await written(sink, [(0, "x"), (1000, "x")], maybe=[0]) == {}


@pytest.mark.parametrize(
    ("loses", "is_written"),
    [("current_query() NOT LIKE '%sluicegate_exact%'", True), ("true", False)],
)
async def test_statements_that_are_lost_at_once_are_replaced_by_staging(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, loses: str, is_written: bool
) -> None:
    """A trigger stands in for the pooler: it raises the server's error for a missing statement."""
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(f"""
            CREATE FUNCTION {db.table}_lose() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF {loses} THEN RAISE EXCEPTION 'lost' USING ERRCODE = '26000'; END IF; RETURN NEW; END $$;
            CREATE TRIGGER one BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION {db.table}_lose()
        """)
        async with db.sink() as sink:
            errors = await written(sink, [(1, "x"), (2, "y")])
        if not is_written:
            assert "statement_cache_size" in whole(errors, 2).repair
        assert len(await db.rows()) == (2 if is_written else 0)


async def test_a_statement_that_is_lost_while_rows_are_told_apart_is_made_again(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(f"""
            CREATE SEQUENCE {db.table}_uses;
            CREATE FUNCTION {db.table}_lose() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN
                IF current_query() LIKE 'DO %' AND nextval('{db.table}_uses') = 1 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '26000'; END IF;
                IF NEW.word = 'bad' THEN RAISE EXCEPTION 'bad' USING ERRCODE = 'UE001'; END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER one BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION {db.table}_lose()
        """)
        async with db.sink() as sink:
            assert sorted(
                await written(
                    sink, [(number, "bad" if number == 3 else "x") for number in range(60)]
                )
            ) == [3]
        assert len(await db.rows()) == 59
