"""A program that starts while its PostgreSQL is down, or its table is missing."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import Database, database

from sluicegate import Batcher, Limits, Observer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

ROWS = [(number, "word") for number in range(2000)]


class Trouble(Observer):
    """Signals that the destination is unavailable."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    def on_destination(self, name: str, state: str, reason: str) -> None:
        if state != "available":
            self.began.set()


@asynccontextmanager
async def stopped(server: EmbeddedPostgres, db: Database) -> AsyncGenerator[None]:
    """Stop the server, and restart it at the end."""
    await db.con.close()
    await asyncio.to_thread(server.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


async def counted(db: Database) -> int:
    con = await asyncpg.connect(db.dsn)
    try:
        return int(await con.fetchval(f"SELECT count(*) FROM {db.table}"))
    finally:
        await con.close()


async def test_a_lazy_batcher_takes_rows_before_the_server_is_up(
    real_clock: LoopClock, embedded_postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate")
    async with database(embedded_postgres.dsn) as db, stopped(embedded_postgres, db):
        trouble = Trouble()
        limits = Limits(max_items=100, max_pending_items=5000, workers=2)
        async with Batcher(
            db.sink(), open="lazy", limits=limits, observers=[trouble], shutdown_deadline=60.0
        ) as batcher:
            await batcher.add_many(ROWS)
            await trouble.began.wait()
            assert batcher.stats().state == "opening"
            assert batcher.stats().tally.inside == len(ROWS)
            await asyncio.to_thread(embedded_postgres.start)
        assert await counted(db) == len(ROWS)
        assert batcher.tally().delivered == len(ROWS)
    told = [record.getMessage() for record in caplog.records if record.name == "sluicegate.batcher"]
    assert "the destination has been unavailable since" in told[0]
    assert any("the destination is available again after" in line for line in told)


async def test_an_eager_batcher_waits_for_the_server(
    real_clock: LoopClock, embedded_postgres: EmbeddedPostgres
) -> None:
    async with database(embedded_postgres.dsn) as db, stopped(embedded_postgres, db):
        trouble = Trouble()
        batcher = Batcher(db.sink(), open_timeout=60.0, observers=[trouble])
        entering = asyncio.create_task(batcher.__aenter__())
        await trouble.began.wait()
        assert not entering.done()
        await asyncio.to_thread(embedded_postgres.start)
        await entering
        await batcher.add_many(ROWS)
        assert (await batcher.shutdown()).complete
        assert await counted(db) == len(ROWS)


async def test_a_table_that_is_missing_at_start_may_be_created_later(
    real_clock: LoopClock, embedded_postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(f"DROP TABLE {db.table}")
        trouble = Trouble()
        async with Batcher(db.sink(), open="lazy", observers=[trouble]) as batcher:
            await batcher.add_many(ROWS)
            await trouble.began.wait()
            assert batcher.stats().destination.state == "refused"
            await db.con.execute(f"CREATE TABLE {db.table} (id int PRIMARY KEY, word text)")
        assert await counted(db) == len(ROWS)
    (line,) = [
        record for record in caplog.records if "has refused every write" in record.getMessage()
    ]
    assert line.levelname == "ERROR"
    assert db.table in line.getMessage()
    assert not [record for record in caplog.records if "unlisted" in record.getMessage()]
