"""State in a database that fails under load."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import asyncpg
import pytest
from state_counting import Counting, expected, key_of
from state_help import StateTables, state_tables
from tests.postgres.sink.postgres_help import proxied

from sluicegate import Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Record
from sluicegate.testing import embedded_postgres as started
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.consumer import DrainReport
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()

COUNT = 6000


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that tests may stop and kill; they leave it running."""
    with there_or_skip("postgres", started({})) as server:
        yield server


@pytest.mark.long
async def test_a_database_that_is_killed(own_postgres: EmbeddedPostgres) -> None:
    """G-T24: events continue meanwhile; at the end the state contains each of them once. A run that
    ends during the outage reports it, and the next one continues.
    """
    log = MemoryLog([Record("t", 0, at, key_of(at), b"") for at in range(COUNT)])
    async with state_tables(own_postgres.dsn) as tables:
        running = asyncio.create_task(_run(tables, log))
        for least in (1000, 3000):
            await _until(tables, least)
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.to_thread(own_postgres.start)
            await _replay(tables)
        report = await running
        if report.commit_error is not None:
            assert await _replay(tables) < COUNT
            report = await _run(tables, log)
        assert report.complete
        assert await _replay(tables) == COUNT


async def _run(tables: StateTables, log: MemoryLog) -> DrainReport:
    counting = Counting(0)
    async with (
        tables.state() as state,
        Consumer(
            state.attach(MemorySource(log, ends=True)),
            ordering="partition",
            commits=Commits(every=0.01),
        ) as consumer,
    ):
        return await consumer.run_events(counting.handle, jobs=[counting.jobs], state=state)


@pytest.mark.parametrize("is_applied", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_answers_to_commits_are_lost(
    embedded_postgres: EmbeddedPostgres, *, is_applied: bool
) -> None:
    """The outcome is verified by reading the position, and no change is lost."""
    counting = Counting(0)
    log = MemoryLog([Record("t", 0, at, key_of(at), b"") for at in range(1500)])
    async with (
        state_tables(embedded_postgres.dsn) as tables,
        proxied(tables.dsn) as (proxy, through),
        tables.state(dsn=through) as state,
        Consumer(
            state.attach(MemorySource(log, ends=True)),
            ordering="partition",
            commits=Commits(every=0.01),
        ) as consumer,
    ):
        running = asyncio.create_task(
            consumer.run_events(counting.handle, jobs=[counting.jobs], state=state)
        )
        for cuts in range(1, 6):
            if is_applied:
                proxy.cut_answer = "COMMIT"
            else:
                proxy.cut_request = lambda _, body: body.startswith(b"COMMIT")
            while proxy.cuts < cuts:
                await CLOCK.sleep(0.001)
            await _replay(tables)
        await running
        assert await tables.stored() == (1500, expected(range(1500)))


async def test_a_server_that_was_read_only(embedded_postgres: EmbeddedPostgres) -> None:
    """Like a former primary after a failover: its connections stay read-only and are replaced."""
    counting = Counting(0)
    log = MemoryLog([Record("t", 0, at, key_of(at), b"") for at in range(3)])
    name = embedded_postgres.dsn.rpartition("/")[2].partition("?")[0]
    setting = f'ALTER DATABASE "{name}" SET default_transaction_read_only'
    async with (
        state_tables(embedded_postgres.dsn) as tables,
        tables.state() as state,
        Consumer(
            state.attach(MemorySource(log)), ordering="partition", commits=Commits(every=0.01)
        ) as consumer,
        asyncio.TaskGroup() as tasks,
        asyncio.timeout(60.0),
    ):
        tasks.create_task(consumer.run_events(counting.handle, jobs=[counting.jobs], state=state))
        while await tables.position() < 3:
            pass
        mine = await tables.con.fetchval("SELECT pg_backend_pid()")
        try:
            await tables.con.execute(f"{setting} = on")
            await tables.con.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> $1",
                mine,
            )
            log.append(Record("t", 0, 3, key_of(3), b""))
            while consumer.stats().commit_failures < 3:
                await CLOCK.sleep(0.01)
        finally:
            await tables.con.execute(f"{setting} = off")
        while await tables.position() < 4:
            pass
        consumer.stop()


@pytest.mark.soak
async def test_a_database_that_is_killed_again_and_again(own_postgres: EmbeddedPostgres) -> None:
    for _ in range(20):
        await test_a_database_that_is_killed(own_postgres)


async def _until(tables: StateTables, least: int) -> None:
    con = await asyncpg.connect(tables.dsn)
    seen = StateTables(tables.dsn, con)
    seen.table, seen.positions = tables.table, tables.positions
    try:
        async with asyncio.timeout(60.0):
            while await seen.position() < least:
                pass
    finally:
        await con.close()


async def _replay(tables: StateTables) -> int:
    """Compare the state with the position on a new connection; return the position."""
    con = await asyncpg.connect(tables.dsn)
    seen = StateTables(tables.dsn, con)
    seen.table, seen.positions = tables.table, tables.positions
    try:
        position, state = await seen.stored()
        assert state == expected(range(position)), json.dumps(state)
    finally:
        await con.close()
    return position
