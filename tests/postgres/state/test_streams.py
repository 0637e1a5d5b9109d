"""State beside a log of streams in PostgreSQL, whose partitions are its slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from state_help import state_tables
from tests.postgres.streams.log_help import Log, fresh_name, install_log

from sluicegate import Consumer
from sluicegate.consumer import Commits
from sluicegate.postgres import PostgresStreamSource

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

STREAMS = 60


@pytest.mark.long
async def test_streams_of_many_slots(embedded_postgres: EmbeddedPostgres) -> None:
    """G-T24: each slot has its own state, and a second run continues with it."""
    log = Log(embedded_postgres.dsn, fresh_name())
    await install_log(log)

    async def handle(context: EventContext) -> None:
        stream = context.key
        context.store.put(stream, [*context.store.get(stream, []), context.message.offset])

    async def run(tables: Any) -> None:
        source = PostgresStreamSource(
            log.dsn, subscription="counts", schema=log.schema, slots_at_once=256, ends=True
        )
        async with (
            tables.state() as state,
            Consumer(
                state.attach(source), ordering="partition", commits=Commits(every=0.01)
            ) as consumer,
        ):
            await consumer.run_events(handle, state=state)

    async with state_tables(embedded_postgres.dsn) as tables, log.connected() as con:
        for first in (0, 3):
            for stream in range(STREAMS):
                await log.append(con, f"s-{stream}", first, first + 1, first + 2)
            await run(tables)
        found = await tables.con.fetch(
            f'SELECT key, value::text FROM "{tables.table}" WHERE partition >= 0'
        )
        states = {row["key"]: row["value"] for row in found}
        messages = await con.fetch(
            f"SELECT stream, array_agg(position ORDER BY position) AS at FROM {log.schema}.message "
            "GROUP BY stream"
        )
        assert states == {row["stream"]: str(row["at"]).replace(" ", "") for row in messages}
        assert len(states) == STREAMS
