"""State of partitions through a PgBouncer in transaction mode.

White box: a smaller page of entries.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest
from state_help import state_tables

from sluicegate import Consumer
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Record
from sluicegate.postgres.state import table

if TYPE_CHECKING:
    from state_help import StateTables
    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

PARTITIONS = 4


async def total(context: EventContext) -> None:
    """Count the events of a key, and those of all keys."""
    for key in (context.key, "all"):
        context.store.put(key, context.store.get(key, 0) + 1)


async def run(tables: StateTables, dsn: str, count: int) -> None:
    """Handle so many events in each partition."""
    log = MemoryLog(
        [
            Record("t", part, at, f"k{at:02}", b"")
            for part in range(PARTITIONS)
            for at in range(count)
        ]
    )
    async with (
        tables.state(dsn=dsn) as state,
        Consumer(
            state.attach(MemorySource(log, ends=True)),
            ordering="partition",
            commits=Commits(every=0.01),
        ) as consumer,
    ):
        await consumer.run_events(total, state=state)


async def left_behind(bouncer: PgBouncer) -> set[str]:
    """The statements that are left in the sessions of the server."""

    async def of_one() -> set[str]:
        con = await asyncpg.connect(bouncer.dsn, statement_cache_size=0)
        try:
            async with con.transaction():
                await started.wait()
                return {
                    row[0] for row in await con.fetch("SELECT name FROM pg_prepared_statements")
                }
        finally:
            await con.close()

    started = asyncio.Barrier(4)  # as many as it has sessions
    return set().union(*await asyncio.gather(*[of_one() for _ in range(4)]))


async def test_a_restart_reads_the_state_and_prepares_nothing(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/G29: a statement that is left would collide with one of another process."""
    monkeypatch.setattr(table, "PAGE", 7)
    async with state_tables(embedded_postgres.dsn) as tables:
        of_others = await left_behind(bouncer)
        await run(tables, bouncer.dsn, 20)
        await run(tables, bouncer.dsn, 30)
        for part in range(PARTITIONS):
            state = {f"k{at:02}": 1 for at in range(30)}
            assert await tables.stored(part) == (30, {**state, "all": 30})
        assert await left_behind(bouncer) <= of_others
