"""A state whose tables, permissions or source do not fit is refused by name before anything is
read.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from state_help import state_tables

from sluicegate import ClosedError, ConfigError, Consumer
from sluicegate.consumer import MemoryLog, MemoryParkStore, MemorySource, Poison, Record
from sluicegate.errors import SluicegateWarning
from sluicegate.postgres import PostgresQueueSource, PostgresState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from state_help import StateTables

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")


def source() -> MemorySource:
    """A source of one record."""
    return MemorySource(MemoryLog([Record("t", 0, 0, "k", b"")]), ends=True)


async def handle(context: Any) -> None:
    """Change the state."""
    context.store.put("n", 1)


@asynccontextmanager
async def role(tables: StateTables) -> AsyncGenerator[str]:
    """The DSN of a role without permissions."""
    con, name = tables.con, f"{tables.table}_reader".lower().replace(" ", "_")
    await con.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    try:
        yield tables.dsn.replace(tables.dsn.partition("//")[2].partition("@")[0], f"{name}:secret")
    finally:
        await con.fetch(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1", name
        )
        await con.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_tables_are_made(embedded_postgres: EmbeddedPostgres) -> None:
    """They are created by the statements that `creation` shows, with quoted names."""
    async with state_tables(embedded_postgres.dsn) as tables:
        state = tables.state()
        assert tables.table in state.creation[0]
        async with state:
            assert await tables.stored() == (0, {})
        async with state:
            pass  # it exists


async def test_a_table_of_another_shape(embedded_postgres: EmbeddedPostgres) -> None:
    async with state_tables(embedded_postgres.dsn) as tables:
        await tables.con.execute(
            f'CREATE TABLE "{tables.table}" (key text PRIMARY KEY, value json)'
        )
        with pytest.raises(ConfigError, match=r"table=.*another shape.*CREATE TABLE"):
            async with tables.state():
                pass


async def test_a_role_that_cannot_make_the_table(embedded_postgres: EmbeddedPostgres) -> None:
    async with state_tables(embedded_postgres.dsn) as tables, role(tables) as dsn:
        with pytest.raises(ConfigError, match=r"table=.*cannot be created.*CREATE TABLE") as told:
            async with tables.state(dsn=dsn):
                pass
        assert "secret" not in str(told.value)


async def test_a_role_without_rights(embedded_postgres: EmbeddedPostgres) -> None:
    async with state_tables(embedded_postgres.dsn) as tables, role(tables) as dsn:
        async with tables.state():
            pass
        name = dsn.partition("//")[2].partition(":")[0]
        await tables.con.execute(f'GRANT SELECT, INSERT ON "{tables.table}" TO {name}')
        with pytest.raises(ConfigError, match="GRANT UPDATE, DELETE ON"):
            async with tables.state(dsn=dsn):
                pass
        await tables.con.execute(f'GRANT ALL ON "{tables.table}" TO {name}')
        with pytest.raises(ConfigError, match=r"positions=.*GRANT SELECT, INSERT, UPDATE ON"):
            async with tables.state(dsn=dsn):
                pass
        await tables.con.execute(f'GRANT ALL ON "{tables.positions}" TO {name}')
        async with (
            tables.state(dsn=dsn) as state,
            Consumer(state.attach(source()), ordering="partition") as consumer,
        ):
            await consumer.run_events(handle, state=state)
        assert await tables.stored() == (1, {"n": 1})


async def test_rows_that_are_hidden(embedded_postgres: EmbeddedPostgres) -> None:
    """A part of the state would be missing without an error."""
    async with state_tables(embedded_postgres.dsn) as tables, role(tables) as dsn:
        async with tables.state():
            pass
        name = dsn.partition("//")[2].partition(":")[0]
        await tables.con.execute(
            f'GRANT ALL ON "{tables.table}", "{tables.positions}" TO {name}; '
            f'ALTER TABLE "{tables.table}" ENABLE ROW LEVEL SECURITY'
        )
        with pytest.raises(ConfigError, match="row security"):
            async with tables.state(dsn=dsn):
                pass


async def test_a_table_that_was_made_anew(embedded_postgres: EmbeddedPostgres) -> None:
    """It does not contain the state before the position: the claim is refused, with what to do."""
    async with state_tables(embedded_postgres.dsn) as tables:
        async with (
            tables.state() as state,
            Consumer(state.attach(source()), ordering="partition") as consumer,
        ):
            await consumer.run_events(handle, state=state)
        await tables.con.execute(f'DROP TABLE "{tables.table}"')
        async with (
            tables.state() as state,
            Consumer(state.attach(source()), ordering="partition", budget=0.5) as consumer,
        ):
            report = await consumer.run_events(handle, state=state)
            assert not report.positions
        assert await tables.stored() == (1, {})


async def test_a_database_of_another_encoding(embedded_postgres: EmbeddedPostgres) -> None:
    dsn = embedded_postgres.dsn
    con = await asyncpg.connect(dsn)
    try:
        await con.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        with pytest.raises(ConfigError, match="UTF8"):
            async with PostgresState(dsn.rpartition("/")[0] + "/latin", table="s"):
                pass
        await con.execute("DROP DATABASE latin")
    finally:
        await con.close()


async def test_sources_that_keep_their_positions(embedded_postgres: EmbeddedPostgres) -> None:
    dsn = embedded_postgres.dsn
    async with state_tables(dsn) as tables:
        with pytest.raises(ClosedError):
            tables.state().attach(source())
        async with tables.state() as state:
            with pytest.raises(ConfigError, match="leave its positions"):
                state.attach(PostgresQueueSource(dsn, queue="q", consumer="c"))
            attached = state.attach(source())
            with pytest.raises(ConfigError, match="the only source"):
                state.attach(source())
            async with Consumer(source(), ordering="partition") as consumer:
                with pytest.raises(ConfigError, match=r"Consumer\(state.attach\(source\)\)"):
                    await consumer.run_events(handle, state=state)
            parks: Any = {"poison": Poison("park_key", parked=MemoryParkStore())}
            with pytest.warns(SluicegateWarning, match="loses parked"):
                parking = Consumer(attached, ordering="partition", **parks)
            async with parking as consumer:
                with pytest.raises(ConfigError, match="parked"):
                    await consumer.run_events(handle, state=state)


async def test_a_run_without_the_state(embedded_postgres: EmbeddedPostgres) -> None:
    """It stores no position: the state would not be the one before it."""
    async with state_tables(embedded_postgres.dsn) as tables:
        for _ in range(2):
            async with (
                tables.state() as state,
                Consumer(state.attach(source()), ordering="partition") as consumer,
            ):
                report = await consumer.run(lambda message: None)
            assert report.counts.acked == 1
            assert await tables.stored() == (0, {})


async def test_changes_outside_a_turn(embedded_postgres: EmbeddedPostgres) -> None:
    """They would belong to no event."""
    kept: list[Any] = []

    async def keep(context: Any) -> None:
        kept.append(context.store)

    async with (
        state_tables(embedded_postgres.dsn) as tables,
        tables.state() as state,
        Consumer(state.attach(source()), ordering="partition") as consumer,
    ):
        await consumer.run_events(keep, state=state)
    with pytest.raises(ConfigError, match="only in the turn of an event"):
        kept[0].put("n", 1)
