"""Server errors that refuse every row, errors that refuse one row, and the repair in their
messages.

White box: the text of an error in a log.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import batch_of, database, proxied, role, whole, written

from sluicegate import (
    ConfigError,
    PermanentError,
    RefusedError,
    ThrottledError,
    UnavailableError,
    send,
)
from sluicegate._core.logs import for_log
from sluicegate.postgres import PostgresSink

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

SERIAL = "id int PRIMARY KEY, word text, version int, number serial"
LACKING: dict[str, tuple[str, dict[str, Any], str]] = {
    "INSERT": ("SELECT", {}, r'grant INSERT on table "public"\."\w+"'),
    "one column": ("INSERT (id, number)", {}, r'grant INSERT \(word\) on table "public"'),
    "the sequence": ("INSERT", {}, r"grant USAGE on sequence \w+_number_seq at"),
    "UPDATE": ("INSERT, SELECT", {"on_conflict": "update"}, r'grant UPDATE on table "public"'),
    "one column to update": (
        "INSERT, SELECT, UPDATE (id)",
        {"on_conflict": "update"},
        r'grant UPDATE on table "public"',
    ),
    "SELECT of the key": (
        "INSERT, UPDATE",
        {"on_conflict": "update"},
        r'grant SELECT on table "public"',
    ),
    "SELECT of the target": (
        "INSERT",
        {"on_conflict": "ignore", "conflict_columns": ("id",)},
        r'grant SELECT on table "public"',
    ),
}


@pytest.mark.parametrize("what", list(LACKING))
async def test_a_missing_right_is_named_with_its_role_and_table(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, what: str
) -> None:
    """When the sink is opened, and in an open sink, by each statement."""
    granted, options, repair = LACKING[what]
    async with database(embedded_postgres.dsn, SERIAL) as db, role(db) as writer:
        sequence = f"USAGE ON SEQUENCE {db.table}_number_seq"
        await db.con.execute(f"GRANT {sequence} TO {writer.name}")
        async with db.sink(dsn=writer.dsn, **options) as sink:
            await db.con.execute(f"REVOKE ALL ON {db.table} FROM {writer.name}")
            await writer.grant(granted)
            if what == "the sequence":
                await db.con.execute(f"REVOKE {sequence} FROM {writer.name}")
            with pytest.raises(ConfigError, match=repair) as refused:
                await db.sink(dsn=writer.dsn, **options).__aenter__()
            assert str(refused.value).endswith(f"to role {writer.name}")
            for size in (5, 100):
                error = whole(await written(sink, [(number, "x") for number in range(size)]), size)
                assert re.match(repair, error.repair), error.repair
                assert error.repair.endswith(f"to role {writer.name}")
            await writer.grant("INSERT, SELECT, UPDATE")
            await db.con.execute(f"GRANT USAGE ON SEQUENCE {db.table}_number_seq TO {writer.name}")
            assert await written(sink, [(number, "x") for number in range(100)]) == {}


async def test_a_role_without_temporary_tables_is_told_so_when_rows_have_to_be_told_apart(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(
            embedded_postgres.dsn, "id int PRIMARY KEY, word text CHECK (word <> 'bad')"
        ) as db,
        role(db) as writer,
    ):
        await db.con.execute("REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC")
        try:
            async with db.sink(dsn=writer.dsn) as sink:
                assert await written(sink, [(number, "good") for number in range(100)]) == {}
                error = whole(await written(sink, [(100, "bad"), (101, "good")]), 2)
                assert error.repair.startswith("grant TEMPORARY on database postgres")
        finally:
            await db.con.execute("GRANT TEMPORARY ON DATABASE postgres TO PUBLIC")
        assert await db.con.fetchval(f"SELECT count(*) FROM {db.table}") == 100


async def test_after_an_unknown_outcome_the_key_has_to_be_read(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        await db.con.execute(f"REVOKE SELECT ON {db.table} FROM {writer.name}")
        async with db.sink(dsn=writer.dsn) as sink:
            assert await written(sink, [(1, "x")]) == {}
            error = whole(await written(sink, [(1, "x")], maybe=[0]), 1)
            assert error.repair.startswith(f'grant SELECT on table "public"."{db.table}"')


TRIGGERS: dict[str, str] = {
    "a table that is not there": "EXECUTE 'INSERT INTO nowhere_at_all VALUES (1)'",
    "a column that is not there": "EXECUTE 'SELECT no_such_column'",
    "a schema that is not there": "EXECUTE 'SELECT no_such_schema.f()'",
    "a state of its own": "RAISE EXCEPTION 'not %', NEW.word USING ERRCODE = 'UE001'",
    "insufficient privilege": "RAISE insufficient_privilege USING MESSAGE = 'not ' || NEW.word",
}


@pytest.mark.parametrize(
    ("what", "options"),
    [
        *((what, {}) for what in TRIGGERS),
        ("a table that is not there", {"on_conflict": "update"}),
    ],
    ids=str,
)
async def test_what_a_trigger_raises_for_one_row_is_that_rows_fault(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, what: str, options: dict[str, Any]
) -> None:
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        await db.con.execute(f"""
            CREATE FUNCTION {db.table}_check() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.word = 'secret value' THEN {TRIGGERS[what]}; END IF; RETURN NEW; END $$;
            CREATE TRIGGER one BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION {db.table}_check()
        """)
        async with db.sink(dsn=writer.dsn, **options) as sink:
            errors = await written(
                sink,
                [
                    (number, "secret value" if number in {7, 70} else "good")
                    for number in range(100)
                ],
            )
            assert sorted(errors) == [7, 70]
            alone = (
                {} if what.endswith("not there") else await written(sink, [(1000, "secret value")])
            )
            for error in (*errors.values(), *alone.values()):
                assert isinstance(error, PermanentError)
                assert "secret value" not in for_log(error)
        assert len(await db.rows()) == 98


async def test_rows_that_failed_before_an_outage_ended_are_tried_again(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The trigger's third call finds its missing table again, during the sifting."""
    async with database(embedded_postgres.dsn) as db, db.sink() as sink:
        await db.con.execute(f"""
            CREATE SEQUENCE {db.table}_uses;
            CREATE FUNCTION {db.table}_late() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF nextval('{db.table}_uses') < 4 THEN EXECUTE 'INSERT INTO nowhere_at_all VALUES (1)'; END IF; RETURN NEW; END $$;
            CREATE TRIGGER one BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION {db.table}_late()
        """)
        assert await written(sink, [(number, "good") for number in range(60)]) == {}
        assert len(await db.rows()) == 60
        await db.con.execute(f"ALTER SEQUENCE {db.table}_uses RESTART")
        assert sorted(
            await written(sink, [(number, "good") for number in (0, 100, 101, 102, 103)])
        ) == [0], "taken by another row"


async def test_a_trigger_that_fails_for_every_row_refuses_the_batch(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The role lacks a permission on a table that the trigger writes to, or that table is
    missing.
    """
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        await db.con.execute(f"""
            CREATE TABLE {db.table}_audit (id int);
            CREATE FUNCTION {db.table}_note() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO {db.table}_audit VALUES (NEW.id); RETURN NEW; END $$;
            CREATE TRIGGER one BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION {db.table}_note()
        """)
        async with db.sink(dsn=writer.dsn) as sink:
            rows = [(number, "good") for number in range(60)]
            assert (
                f"permission denied for table {db.table}_audit"
                in whole(await written(sink, rows), 60).repair
            )
            await db.con.execute(f"ALTER TABLE {db.table}_audit RENAME TO {db.table}_gone")
            assert "its triggers" in whole(await written(sink, rows), 60).repair
            await db.con.execute(
                f"ALTER TABLE {db.table}_gone RENAME TO {db.table}_audit; GRANT INSERT ON "
                f"{db.table}_audit TO {writer.name}"
            )
            assert await written(sink, rows) == {}


@pytest.mark.parametrize("size", [5, 100])
async def test_a_sequence_at_its_end_refuses_the_batch(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, size: int
) -> None:
    async with database(embedded_postgres.dsn, SERIAL) as db, db.sink() as sink:
        await db.con.execute(f"SELECT setval('{db.table}_number_seq', 2147483647)")
        error = whole(await written(sink, [(number, "x") for number in range(size)]), size)
        assert f"{db.table}_number_seq" in error.repair
        assert "raise the maximum" in error.repair


async def test_a_unique_index_that_is_gone_refuses_upserts(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, "id int, word text") as db:
        await db.con.execute(f"CREATE UNIQUE INDEX {db.table}_key ON {db.table} (id)")
        async with db.sink(on_conflict="update") as sink:
            rows = [(number, "x") for number in range(60)]
            assert await written(sink, rows) == {}
            await db.con.execute(f"DROP INDEX {db.table}_key")
            assert "restore the unique key" in whole(await written(sink, rows), 60).repair
            await db.con.execute(f"CREATE UNIQUE INDEX {db.table}_key ON {db.table} (id)")
            assert await written(sink, rows) == {}
            assert len(await db.rows()) == 60


async def test_where_the_server_cannot_be_asked_no_row_is_blamed(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        role(db) as writer,
        proxied(writer.dsn) as (proxy, through),
    ):
        async with db.sink(dsn=through) as sink:
            rows = [(number, "x") for number in range(60)]
            await db.con.execute(f"REVOKE INSERT ON {db.table} FROM {writer.name}")
            proxy.cut_request = lambda kind, body: kind in b"PQ" and b"has_column_privilege" in body
            error = whole(await written(sink, rows), 60)
            assert "permission denied" in error.repair
            assert "the lookup failed" in error.repair
            await writer.grant()
            await db.con.execute(f"ALTER TABLE {db.table} ENABLE ROW LEVEL SECURITY")
            for word in (b"row_security_active", b"has_column_privilege"):
                proxy.cut_request = lambda kind, body, word=word: kind in b"PQ" and word in body
                errors = await written(sink, rows)
                assert {type(each) for each in errors.values()} == {UnavailableError}
            assert proxy.cuts == 3


async def test_a_dropped_role_that_is_made_again_writes_by_new_sessions(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Open sessions keep the oid of the dropped role and have lost their permissions."""
    async with (
        database(embedded_postgres.dsn) as db,
        role(db) as writer,
        db.sink(dsn=writer.dsn, pool_size=2) as sink,
    ):
        assert await written(sink, [(1, "x")]) == {}
        await db.con.execute(f"DROP OWNED BY {writer.name}; DROP ROLE {writer.name}")
        await db.con.execute(f"CREATE ROLE {writer.name} LOGIN PASSWORD 'secret'")
        await writer.grant()
        whole(await written(sink, [(2, "x")]), 1)
        assert await written(sink, [(2, "x")]) == {}


@pytest.mark.parametrize(
    ("mode", "size"), [("error", 1), ("error", 100), ("ignore", 100), ("update", 100)]
)
async def test_row_security_without_a_policy_refuses_the_batch(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, size: int
) -> None:
    """An operator enables it before creating the policies."""
    async with (
        database(embedded_postgres.dsn) as db,
        role(db) as writer,
        db.sink(dsn=writer.dsn, on_conflict=mode) as sink,
    ):
        rows = [(number, "x") for number in range(size)]
        await db.con.execute(f"ALTER TABLE {db.table} ENABLE ROW LEVEL SECURITY")
        policies = {"INSERT": f"TO {writer.name} WITH CHECK (true)"}
        if mode == "update":
            policies["SELECT"] = "USING (true)"
        for command, policy in policies.items():
            error = whole(await written(sink, rows), size)
            assert f"a policy for {command} on table" in error.repair
            await db.con.execute(f"CREATE POLICY p_{command} ON {db.table} FOR {command} {policy}")
        assert await written(sink, rows) == {}
        assert len(await db.rows()) == size


# -- connecting ------------------------------------------------------------------------------------


async def test_a_login_that_is_refused_fails_the_opening_and_waits_in_an_open_sink(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        async with db.sink(dsn=writer.dsn) as sink:
            await db.con.execute(f"ALTER ROLE {writer.name} NOLOGIN")
            await writer.end_sessions()
            await written(sink, [(1, "x")])  # may be the one that detects the closed connection
            error = whole(await written(sink, [(1, "x")]), 1)
            assert sink.classify(error) is not None
            with pytest.raises(ConfigError) as caught:
                async with db.sink(dsn=writer.dsn):
                    pass
            assert error.repair in str(caught.value)
            await db.con.execute(f"ALTER ROLE {writer.name} LOGIN CONNECTION LIMIT 0")
            assert {type(each) for each in (await written(sink, [(1, "x")])).values()} == {
                ThrottledError
            }
            await db.con.execute(f"ALTER ROLE {writer.name} CONNECTION LIMIT -1")
            assert await written(sink, [(1, "x")]) == {}


async def test_a_database_that_is_gone_is_refused_by_name(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute("DROP DATABASE IF EXISTS gone")
        await db.con.execute("CREATE DATABASE gone")
        dsn = db.dsn.rpartition("/")[0] + "/gone"
        con = await asyncpg.connect(dsn)
        await con.execute("CREATE TABLE words (id int PRIMARY KEY, word text)")
        await con.close()
        async with PostgresSink(dsn, table="words", columns=("id", "word"), pool_size=1) as sink:
            await db.con.execute("ALTER DATABASE gone ALLOW_CONNECTIONS false")
            await db.con.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = "
                "'gone'"
            )
            await written(sink, [(1, "x")])  # may be the one that detects the closed connection
            whole(await written(sink, [(1, "x")]), 1)
            await db.con.execute("DROP DATABASE gone")
            assert "create the database" in whole(await written(sink, [(1, "x")]), 1).repair
            with pytest.raises(ConfigError, match="create the database"):
                async with PostgresSink(dsn, table="words", columns=("id",)):
                    pass


async def test_a_setup_that_fails_blames_no_item(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    broken: list[Exception] = []

    async def setup(con: Any) -> None:
        if broken:
            raise broken[0]

    async with (
        database(embedded_postgres.dsn) as db,
        db.sink(connect_options={"setup": setup}) as sink,
    ):
        for error, kind in (
            (KeyError("tenant"), RefusedError),
            (UnavailableError("by itself"), UnavailableError),
        ):
            broken[:] = [error]
            errors = await written(sink, [(1, "x")])
            assert {type(each) for each in errors.values()} == {kind}
            assert "tenant" not in for_log(errors[0])
        broken.clear()
        assert await written(sink, [(1, "x")]) == {}


# -- logs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 100])
async def test_a_log_shows_no_value_of_a_row_and_the_error_keeps_all_of_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, size: int
) -> None:
    ddl = "id int PRIMARY KEY, word varchar(30) CHECK (word <> 'secret check'), number int2"
    secrets = [
        (4, "secret check", 1),
        (1, "secret check", 1),
        (2, "secret " * 10, 1),
        (3, "x", "secret text"),
        (0, None, 1),
    ]
    async with (
        database(embedded_postgres.dsn, ddl) as db,
        db.sink(("id", "word", "number")) as sink,
    ):
        await db.con.execute(f"INSERT INTO {db.table} VALUES (0)")
        errors = await send(
            sink, batch_of([*secrets, *((number, "good", 1) for number in range(10, 5 + size))])
        )
        assert sorted(errors) == [0, 1, 2, 3, 4]
        for error in errors.values():
            assert not re.search(r"secret|Failing|DETAIL|\(0\)|\(id\)", for_log(error)), for_log(
                error
            )
        assert "Failing row contains" in str(errors[1])
        assert "SQLSTATE 23514" in for_log(errors[1])
        assert f"'{db.table}_word_check'" in for_log(errors[1])


@pytest.mark.parametrize("size", [1, 5, 100])
async def test_a_text_that_is_too_long_for_a_name_refuses_its_row_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, size: int
) -> None:
    """42622 is in the class of missing tables, but concerns a value."""
    async with database(embedded_postgres.dsn, "id int, word name") as db, db.sink() as sink:
        errors = await written(sink, [(number, "x" * 64) for number in range(size)])
        assert [type(errors[number]) for number in range(size)] == [PermanentError] * size
        assert list(await written(sink, [(1, "short"), (2, "x" * 64), (3, "short")])) == [1]
        assert await db.con.fetchval(f"SELECT count(*) FROM {db.table}") == 2
