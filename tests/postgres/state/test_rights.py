"""The documented privileges of roles with state and positions: they suffice, and each is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from state_help import StateTables, state_tables
from tests.kafka.source.storm_help import log_lines
from tests.postgres.streams.log_help import Log, Role, fresh_name, install_log, role

from sluicegate import ConfigError, Consumer, flow
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Record
from sluicegate.postgres import PostgresSink, PostgresStreamSource, install_streams

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

STATE = ("SELECT", "INSERT", "UPDATE", "DELETE")
POSITIONS = ("SELECT", "INSERT", "UPDATE")


def source(count: int) -> MemorySource:
    return MemorySource(
        MemoryLog([Record("t", 0, at, "k", b"1") for at in range(count)]), ends=True
    )


async def count(tables: StateTables, dsn: str, events: int) -> None:
    """Handle the events of a log, from the stored position on."""

    async def handle(context: EventContext) -> None:
        store = context.store
        store.put("n", store.get("n", 0) + 1)
        store.put(f"once/{context.message.offset}", 1)
        store.delete(f"once/{context.message.offset - 1}")

    async with (
        tables.state(dsn=dsn) as state,
        Consumer(
            state.attach(source(events)), ordering="partition", commits=Commits(every=0.01)
        ) as consumer,
    ):
        await consumer.run_events(handle, state=state)


async def allow(con: Any, app: Role, table: str, privileges: tuple[str, ...]) -> None:
    """Give the role these privileges on a table, and no others."""
    await con.execute(f'REVOKE ALL ON "{table}" FROM {app.name}')
    await con.execute(f'GRANT {", ".join(privileges)} ON "{table}" TO {app.name}')


async def test_a_state_needs_the_documented_privileges(embedded_postgres: EmbeddedPostgres) -> None:
    async with (
        role(Log(embedded_postgres.dsn, "")) as app,
        state_tables(embedded_postgres.dsn) as tables,
        asyncio.timeout(60),
    ):
        await count(tables, tables.dsn, 2)
        await allow(tables.con, app, tables.table, STATE)
        await allow(tables.con, app, tables.positions, POSITIONS)
        await count(tables, app.dsn, 4)
        assert (await tables.stored())[1]["n"] == 4
        for table, given in ((tables.table, STATE), (tables.positions, POSITIONS)):
            for each in given:
                await allow(
                    tables.con, app, table, tuple(other for other in given if other != each)
                )
                with pytest.raises((ConfigError, ExceptionGroup)) as caught:
                    await count(tables, app.dsn, 5)
                assert each in str(caught.value), f"{each} on {table}"
                assert table in str(caught.value)
            await allow(tables.con, app, table, given)
        await count(tables, app.dsn, 5)
        assert (await tables.stored())[1]["n"] == 5


async def test_positions_of_a_flow_need_the_documented_privileges(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """A flow waits for a missing one, and the log says what to grant."""
    log, table = Log(embedded_postgres.dsn, fresh_name()), fresh_name()
    await install_log(log)

    async def move(dsn: str) -> None:
        source = PostgresStreamSource(dsn, subscription="copies", schema=log.schema, ends=True)
        sink = PostgresSink(dsn, table=table, columns=("n",), positions=f"{table}_positions")
        pipe = flow.transaction(source, sink, lambda message: (message.offset,), name="copies")
        await pipe.run()

    async with role(log) as app, log.connected() as con, asyncio.timeout(60):
        await con.execute(f"CREATE TABLE {table} (n bigint)")
        await install_streams(log.dsn, schema=log.schema, subscribe=app.name)
        await log.append(con, "order-1", 1)
        await move(log.dsn)
        await allow(con, app, table, ("INSERT",))
        for number, each in enumerate(POSITIONS, 2):
            await log.append(con, "order-1", number)
            rest = tuple(other for other in POSITIONS if other != each)
            await allow(con, app, f"{table}_positions", rest)
            async with log_lines() as lines:
                moving = asyncio.create_task(move(app.dsn))
                await lines.wait(f"grant SELECT, INSERT and UPDATE on table .*{table}_positions")
            await allow(con, app, f"{table}_positions", POSITIONS)
            await moving
        found = await con.fetch(f"SELECT n FROM {table} ORDER BY n")
        await con.execute(f"DROP TABLE {table}, {table}_positions")
    assert [row["n"] for row in found] == [1, 2, 3, 4]
