"""A server that refuses every row for some time causes no loss: the stack waits for the repair and
then delivers.

White box: a decorator that watches what the sink answers.
"""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
import tenacity
from tests.postgres.sink.postgres_help import Database, Role, database, role

from sluicegate import (
    Batcher,
    DeadLetter,
    ErrorClass,
    Limits,
    RefusedError,
    Retry,
    RowBatch,
    Timeout,
    UnavailableError,
    WriteResult,
    send,
    stack,
)
from sluicegate._core.decorator import WrappingSink
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


class Watched(WrappingSink[Any]):
    """Forwards everything, and signals refusals, or another kind of error, after `count` of
    them.
    """

    def __init__(self, inner: Any, kind: type[Exception] = RefusedError, count: int = 1) -> None:
        super().__init__(inner)
        self.kind = kind
        self.count = count
        self.refusals: list[Any] = []
        self.refused = asyncio.Event()

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        errors = await send(self.inner, batch)
        self.refusals += [error for error in errors.values() if isinstance(error, self.kind)][:1]
        if len(self.refusals) >= self.count:
            self.refused.set()
        return WriteResult.failed(batch, errors) if errors else None


async def _revoke(db: Database, writer: Role) -> None:
    await db.con.execute(f"REVOKE INSERT ON {db.table} FROM {writer.name}")


async def _grant(db: Database, writer: Role) -> None:
    await writer.grant("INSERT")


async def _rename(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER TABLE {db.table} RENAME TO {db.table}_aside")


async def _rename_back(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER TABLE {db.table}_aside RENAME TO {db.table}")


async def _lock_out(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER ROLE {writer.name} NOLOGIN")
    await writer.end_sessions()


async def _let_in(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER ROLE {writer.name} LOGIN")


async def _drop_column(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER TABLE {db.table} DROP COLUMN word")


async def _add_column(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER TABLE {db.table} ADD COLUMN word text")


async def _take_aside(db: Database, writer: Role) -> None:
    """Move the rows aside, so that an empty table with its own key takes the name."""
    await db.con.execute(
        f"CREATE TABLE {db.table}_aside AS SELECT * FROM {db.table}; DROP TABLE {db.table}"
    )


async def _make_anew(db: Database, writer: Role) -> None:
    await db.con.execute(f"""
        CREATE TABLE {db.table} (word text, id bigint PRIMARY KEY); INSERT INTO {db.table} SELECT word, id FROM {db.table}_aside
    """)
    await writer.grant()


async def _read_only(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER ROLE {writer.name} SET default_transaction_read_only = on")
    await writer.end_sessions()


async def _writable(db: Database, writer: Role) -> None:
    """Open sessions stay read-only: only new ones can write."""
    await db.con.execute(f"ALTER ROLE {writer.name} RESET default_transaction_read_only")


async def _new_password(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER ROLE {writer.name} PASSWORD 'changed'")
    await writer.end_sessions()


async def _old_password(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER ROLE {writer.name} PASSWORD 'secret'")


async def _hide_schema(db: Database, writer: Role) -> None:
    await db.con.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")


async def _show_schema(db: Database, writer: Role) -> None:
    await db.con.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")


async def _need_more(db: Database, writer: Role) -> None:
    """Add a column that the sink does not write, as in a migration."""
    await db.con.execute(
        f"ALTER TABLE {db.table} ADD COLUMN more int NOT NULL DEFAULT 0; ALTER TABLE "
        f"{db.table} ALTER COLUMN more DROP DEFAULT"
    )


async def _need_no_more(db: Database, writer: Role) -> None:
    await db.con.execute(f"ALTER TABLE {db.table} ALTER COLUMN more SET DEFAULT 0")


OUTAGES: dict[str, tuple[Any, Any, str]] = {
    "REVOKE INSERT": (
        _revoke,
        _grant,
        'grant INSERT on table "public"."{table}" at {place} to role {role}',
    ),
    "renamed": (
        _rename,
        _rename_back,
        'create table "public"."{table}" at {place}, or restore its name',
    ),
    "NOLOGIN": (
        _lock_out,
        _let_in,
        'let the role log in at {place}: .*"{role}" is not permitted to log in',
    ),
    "column dropped": (
        _drop_column,
        _add_column,
        'add column "word" to table "public"."{table}" at {place} again',
    ),
    "dropped and created": (_take_aside, _make_anew, 'create table "public"."{table}" at {place}'),
    "read-only": (_read_only, _writable, "make {place} writable"),
    "password": (_new_password, _old_password, 'let the role log in at {place}: .*user "{role}"'),
    "schema": (
        _hide_schema,
        _show_schema,
        "grant USAGE on schema public at {place} to role {role}",
    ),
    "NOT NULL without a default": (
        _need_more,
        _need_no_more,
        'give column "more" of table "public"."{table}" at {place} a default',
    ),
}
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "COPY": (500, {}),
    "INSERT": (40, {"pool_size": 2}),
    "upsert": (500, {"on_conflict": "update"}),
}


def good(count: int, start: int = 0) -> list[tuple[int, str]]:
    return [(number, "good") for number in range(start, start + count)]


@pytest.mark.parametrize(
    ("outage", "way"),
    [
        *((outage, "COPY") for outage in OUTAGES),
        *(("REVOKE INSERT", way) for way in WAYS if way != "COPY"),
        *(
            pytest.param(outage, way, marks=pytest.mark.long)
            for outage in OUTAGES
            for way in WAYS
            if way != "COPY" and outage != "REVOKE INSERT"
        ),
    ],
)
async def test_an_outage_of_refusals_costs_no_good_row_and_names_its_repair(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, outage: str, way: str
) -> None:
    """batcher/B25: 2,000 of 3,000 rows encounter it, on the same open sink before and after."""
    begin, end, repair = OUTAGES[outage]
    size, options = WAYS[way]
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        watched = Watched(db.sink(dsn=writer.dsn, **options))
        letters = MemorySink[Any]()
        sink = stack(watched, Timeout(5.0), Retry(attempts=5), DeadLetter(letters))
        async with Batcher(
            sink, limits=Limits(max_items=size, max_delay=0.05, workers=2), name="outage"
        ) as batcher:
            await batcher.add_many(good(1000))
            await batcher.flush()
            await begin(db, writer)
            try:
                await batcher.add_many(good(2000, 1000))
                await watched.refused.wait()
            finally:
                await end(db, writer)
            await batcher.flush()
        assert letters.items == []
        assert await db.con.fetchval(f"SELECT count(DISTINCT id) FROM {db.table}") == 3000
        place = embedded_postgres.dsn.partition("@")[2]
        assert_repair(
            watched.refusals[0], repair.format(table=db.table, place=place, role=writer.name)
        )


def assert_repair(error: RefusedError, pattern: str) -> None:
    parts = [re.escape(part) for part in pattern.split(".*")]
    assert re.search(".*".join(parts), error.repair), error.repair
    assert error.repair in str(error)
    assert error.summary is not None
    assert error.repair in error.summary
    assert isinstance(error.__cause__, asyncpg.PostgresError)


LONG = "".join(
    random.Random(7).choices(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", k=8000
    )
)
POISON_WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "COPY": (500, {"statement": "copy"}),
    "unnest": (500, {"statement": "unnest"}),
    "INSERT": (40, {}),
    "auto": (500, {}),
    "ON CONFLICT": (500, {"on_conflict": "update"}),
    "ON CONFLICT by COPY": (500, {"on_conflict": "update", "staging_threshold": 1}),
}


@pytest.mark.parametrize(
    ("what", "way"),
    [
        *(("row-level security", way) for way in POISON_WAYS),
        ("too large for the index", "auto"),
        *(
            pytest.param("too large for the index", way, marks=pytest.mark.long)
            for way in POISON_WAYS
            if way != "auto"
        ),
    ],
)
async def test_one_item_that_the_server_refuses_is_alone_in_the_dead_letters(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, what: str, way: str
) -> None:
    """Among 3,000 good ones. `COPY` itself does not support tables with row-level security."""
    size, options = POISON_WAYS[way]
    bad = (1700, LONG if what.startswith("too") else "not yours")
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        await db.con.execute(f"CREATE INDEX ON {db.table} (word)")
        if not what.startswith("too"):
            await db.con.execute(f"""
                ALTER TABLE {db.table} ENABLE ROW LEVEL SECURITY;
                CREATE POLICY own ON {db.table} USING (true) WITH CHECK (word <> 'not yours')
            """)
        letters = MemorySink[Any]()
        watched = Watched(db.sink(dsn=writer.dsn, **options))
        sink = stack(watched, Timeout(10.0), Retry(attempts=5), DeadLetter(letters))
        async with Batcher(
            sink, limits=Limits(max_items=size, max_delay=0.05, workers=2), name="poison"
        ) as batcher:
            await batcher.add_many([*good(1700), bad, *good(1300, 1701)])
            await batcher.flush()
        assert [letter.item for letter in letters.items] == [bad]
        assert watched.refusals == []
        assert await db.con.fetchval(f"SELECT count(*) FROM {db.table}") == 3000


async def test_a_tenant_of_bad_rows_is_refused_whole_while_its_neighbours_go_in(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        await db.con.execute(f"""
            ALTER TABLE {db.table} ENABLE ROW LEVEL SECURITY;
            CREATE POLICY own ON {db.table} USING (true) WITH CHECK (word <> 'not yours')
        """)
        async with db.sink(dsn=writer.dsn) as sink:
            rows = [(number, "not yours" if number % 3 == 0 else "good") for number in range(300)]
            errors = await send(sink, RowBatch(rows))
            assert sorted(errors) == list(range(0, 300, 3))
            alone = await send(sink, RowBatch([(1000, "not yours")]))
            assert [type(error.__cause__) for error in alone.values()] == [
                asyncpg.InsufficientPrivilegeError
            ]
            assert {type(error).__name__ for error in (*errors.values(), *alone.values())} == {
                "PermanentError"
            }


@pytest.mark.parametrize(
    ("limit", "way"),
    [
        *(("lock_timeout", way) for way in WAYS),
        ("statement_timeout", "COPY"),
        *(
            pytest.param("statement_timeout", way, marks=pytest.mark.long)
            for way in WAYS
            if way != "COPY"
        ),
    ],
)
async def test_a_migration_that_locks_the_table_uses_up_no_attempts(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, limit: str, way: str
) -> None:
    """Each attempt ends at the server's limit; there are more attempts than `attempts`."""
    size, options = WAYS[way]
    limited: dict[str, Any] = {**options, "connect_options": {"server_settings": {limit: "50"}}}
    async with database(embedded_postgres.dsn) as db:
        watched = Watched(db.sink(**limited), UnavailableError, count=4)
        letters = MemorySink[Any]()
        sink = stack(
            watched,
            Timeout(5.0),
            Retry(attempts=2, backoff=tenacity.wait_none()),
            DeadLetter(letters),
        )
        async with Batcher(
            sink, limits=Limits(max_items=size, max_delay=0.05), name="locked"
        ) as batcher:
            async with db.con.transaction():
                await db.con.execute(f"LOCK TABLE {db.table}")
                await batcher.add_many(good(100))
                await watched.refused.wait()
            await batcher.flush()
        assert letters.items == []
        assert len(await db.rows()) == 100


async def test_a_lock_on_a_single_row_is_transient(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        options: dict[str, Any] = {
            "connect_options": {"server_settings": {"lock_timeout": "50"}},
            "on_conflict": "update",
        }
        async with db.sink(**options) as sink, db.con.transaction():
            await db.con.execute(f"INSERT INTO {db.table} VALUES (1, 'there')")
            errors = await send(sink, RowBatch([(1, "x"), (2, "y")]))
            assert {sink.classify(error) for error in errors.values()} == {ErrorClass.TRANSIENT}
