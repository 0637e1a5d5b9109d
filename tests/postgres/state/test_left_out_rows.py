"""A state table whose triggers skip rows: no position is stored without them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from state_help import state_tables

from sluicegate import Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Record

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()

KEEPS = "CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


@pytest.mark.parametrize(
    ("event", "told"),
    [("INSERT", "wrote 0 of 1 rows"), ("DELETE", "did not delete 1 of 2 rows")],
)
async def test_a_trigger_that_leaves_rows_out_stops_the_commits_until_it_is_gone(
    embedded_postgres: EmbeddedPostgres,
    caplog: pytest.LogCaptureFixture,
    event: str,
    told: str,
) -> None:
    """G-T24: for example a trigger that marks rows as deleted instead. The next run would have
    another state.
    """

    async def handle(context: EventContext) -> None:
        if context.message.offset == 2:
            context.store.delete("a")
            context.store.put("b", 2)
            context.store.put("new", 2)
            context.store.delete("new")
        else:
            context.store.put(context.key, context.message.offset)

    log = MemoryLog([Record("t", 0, at, key, b"") for at, key in enumerate("ab")])
    async with (
        state_tables(embedded_postgres.dsn) as tables,
        tables.state() as state,
        Consumer(
            state.attach(MemorySource(log)), ordering="partition", commits=Commits(every=0.01)
        ) as consumer,
        asyncio.TaskGroup() as tasks,
        asyncio.timeout(60.0),
    ):
        tasks.create_task(consumer.run_events(handle, state=state))
        while await tables.position() < 2:
            pass
        await tables.con.execute(KEEPS)
        await tables.con.execute(
            f'CREATE TRIGGER keep BEFORE {event} ON "{tables.table}" FOR EACH ROW '
            f"WHEN ({'NEW' if event == 'INSERT' else 'OLD'}.partition >= 0) "
            "EXECUTE FUNCTION public.keep()"
        )
        log.append(Record("t", 0, 2, "c", b""))
        while told not in caplog.text:
            await CLOCK.sleep(0.01)
        assert await tables.stored() == (2, {"a": 0, "b": 1})
        await tables.con.execute("DROP FUNCTION public.keep CASCADE")
        while await tables.position() < 3:
            pass
        assert await tables.stored() == (3, {"b": 2})
        consumer.stop()
