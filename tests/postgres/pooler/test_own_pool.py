"""`pool=`: the application's own pool, directly and through a PgBouncer."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.access_help import access_from
from tests.postgres.pooler.crowd import crowd
from tests.postgres.sink.postgres_help import (
    batch_of,
    database,
    role,
    until_blocked,
    whole,
    written,
)

from sluicegate import Batcher, ConfigError, Limits, RefusedError, send
from sluicegate.errors import NotPicklableError
from sluicegate.postgres import PostgresAccess, PostgresSink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


@asynccontextmanager
async def pool_of(dsn: str, **options: Any) -> AsyncGenerator[asyncpg.Pool[Any]]:
    usual: dict[str, Any] = {"min_size": 0, "max_size": 4}
    async with asyncpg.create_pool(dsn, **{**usual, **options}) as pool:
        yield pool


def on(pool: Any, table: str, **options: Any) -> PostgresSink:
    given = {"pool": pool, **options}
    return PostgresSink(access_from(None, given), table=table, columns=("id", "word"), **given)


def rows(start: int, count: int = 60) -> list[tuple[int, str]]:
    return [(start + number, "x") for number in range(count)]


async def test_a_shared_pool_serves_others_while_the_sink_is_open_and_afterwards(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Its sessions keep their settings, and another user's temporary table still exists."""
    server_settings = {"search_path": "pg_catalog, public", "application_name": "theirs"}
    async with (
        database(embedded_postgres.dsn) as db,
        pool_of(db.dsn, server_settings=server_settings) as pool,
        pool.acquire() as theirs,
    ):
        await theirs.execute("CREATE TEMP TABLE own AS SELECT 1 AS n")
        async with Batcher(
            on(pool, db.table, pool_size=3), limits=Limits(max_items=20, workers=3)
        ) as batcher:
            await batcher.add_many(rows(0, 400))
            assert await theirs.fetchval("SELECT n FROM own") == 1
        assert not pool.is_closing()
        assert await theirs.fetchval("SHOW search_path") == "pg_catalog, public"
        assert await pool.fetchval("SHOW application_name") == "theirs"
        assert len(await db.rows()) == 400


async def _sessions(pool: asyncpg.Pool[Any]) -> set[int]:
    """The process ids of three sessions, idle ones first."""
    async with pool.acquire() as one, pool.acquire() as two, pool.acquire() as three:
        return {con.get_server_pid() for con in (one, two, three)}


async def test_a_refusal_ends_no_session_of_another_user(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        role(db) as writer,
        pool_of(writer.dsn) as pool,
        on(pool, db.table) as sink,
    ):
        before = await _sessions(pool)
        await db.con.execute(f"REVOKE INSERT ON {db.table} FROM {writer.name}")
        assert "grant INSERT" in whole(await written(sink, rows(0)), 60).repair
        assert len(await _sessions(pool) & before) == 2, "all but the sink's own"
        await writer.grant()
        assert await written(sink, rows(0)) == {}


async def test_a_sink_that_is_cut_off_ends_only_its_own_connections(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        pool_of(db.dsn) as pool,
        pool.acquire() as theirs,
        db.con.transaction(),
    ):
        await db.con.execute(f"LOCK TABLE {db.table}")
        async with on(pool, db.table, close_timeout=0.05) as sink:
            write = asyncio.ensure_future(written(sink, rows(0)))
            await until_blocked(db.con, db.table)
            sink._terminate()  # pyright: ignore[reportPrivateUsage]
            assert len(await write) == 60
        assert await theirs.fetchval("SELECT 1") == 1
        assert await pool.fetchval("SELECT 1") == 1


async def test_a_sink_whose_closing_is_cut_off_leaves_no_connection_lent(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The server is frozen, so a cancelled write has not returned its connection by then."""
    async with database(embedded_postgres.dsn) as db, pool_of(db.dsn, max_size=1) as pool:
        pid = await pool.fetchval("SELECT pg_backend_pid()")
        sink = on(pool, db.table)
        async with db.con.transaction():
            await db.con.execute(f"LOCK TABLE {db.table}")
            await sink.__aenter__()
            write = asyncio.ensure_future(written(sink, rows(0)))
            await until_blocked(db.con, db.table)
            os.kill(pid, signal.SIGSTOP)
            try:
                write.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await write
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await sink.__aexit__(None, None, None)
            finally:
                os.kill(pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            assert await pool.fetchval("SELECT 1") == 1
        assert await db.rows() == []


@pytest.mark.parametrize(
    ("made_by_function", "close_pool", "is_closed"),
    [(False, None, False), (False, True, True), (True, None, True), (True, False, False)],
)
async def test_who_closes_the_pool(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    made_by_function: bool,
    close_pool: bool | None,
    is_closed: bool,
) -> None:
    async with database(embedded_postgres.dsn) as db, pool_of(db.dsn) as pool:
        given: Any = (lambda: pool) if made_by_function else pool
        async with on(given, db.table, pool_size=2, close_pool=close_pool) as sink:
            assert await written(sink, rows(0)) == {}
        assert pool.is_closing() is is_closed


async def test_a_pool_that_cannot_serve_is_told(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, pool_of(db.dsn) as pool:
        with pytest.raises(ConfigError, match="pool_size=5: the pool has 4 connections"):
            on(pool, db.table, pool_size=5)
        sink = on(pool, db.table)
        assert sink.capabilities.max_concurrency == 4
        with pytest.raises(NotPicklableError, match="pool=Pool cannot be pickled"):
            pickle.dumps(sink)

        async def elsewhere() -> None:
            async with sink:
                pass

        with pytest.raises(ConfigError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        async with sink:
            assert await written(sink, rows(0)) == {}
            await pool.close()
            error = next(iter((await written(sink, rows(100))).values()))
            assert isinstance(error, RefusedError)
            assert "close the batcher or the sink before the pool" in error.repair
        with pytest.raises(ConfigError, match="is closed"):
            async with sink:
                pass


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"close_pool": 1}, "close_pool"),
        ({"close_pool": False, "pool": None, "dsn": "postgresql://db"}, "close_pool"),
        ({"pool": "postgresql://there"}, "pool"),
        ({"prepared_statements": "off"}, "prepared_statements"),
        ({"prepared_statements": 1}, "prepared_statements"),
        (
            {
                "prepared_statements": True,
                "pool": None,
                "dsn": "postgresql://db",
                "connect_options": {"statement_cache_size": 0},
            },
            "prepared_statements",
        ),
    ],
)
def test_a_wrong_choice_is_named(options: dict[str, Any], name: str) -> None:
    given: dict[str, Any] = {"pool": dict, **options}
    with pytest.raises(ConfigError, match=f"^{name}="):
        PostgresAccess(**given)


# -- prepared statements ---------------------------------------------------------------------------


async def test_a_pool_behind_a_pooler_works_by_its_own_settings(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        crowd(bouncer.dsn),
        pool_of(bouncer.dsn, statement_cache_size=0) as pool,
        on(pool, db.table) as sink,
    ):
        parts = await asyncio.gather(
            *(send(sink, batch_of(rows(start, 20))) for start in range(0, 400, 20))
        )
        assert parts == [{}] * 20
        assert len(await db.rows()) == 400


@pytest.mark.parametrize("prepared", ["auto", False])
async def test_a_pool_that_prepares_statements_where_none_can_be_kept_is_refused(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock, prepared: Any
) -> None:
    async with database(embedded_postgres.dsn) as db, pool_of(bouncer.dsn) as pool:
        with pytest.raises(ConfigError, match="create it with statement_cache_size=0"):
            async with on(pool, db.table, prepared_statements=prepared):
                pass
        assert not pool.is_closing()
        left = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '% AS sluicegate%'"
        async with pool.acquire() as con, con.transaction():
            assert await con.execute(f"SELECT WHERE ({left}) > 0") == "SELECT 0"
