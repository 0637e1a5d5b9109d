"""Connections that the sink keeps from one write to the next.

White box: the connections that are idle at the moment.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import (
    Database,
    database,
    role,
    until_blocked,
    whole,
    written,
)

from sluicegate.postgres import PostgresAccess, PostgresSink

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.postgres.client.connections import Connections
    from sluicegate.testing import EmbeddedPostgres

COLUMNS = "id int PRIMARY KEY, word text, session int DEFAULT pg_backend_pid()"


def connections_of(sink: PostgresSink) -> Connections:
    return sink._opened().connections  # pyright: ignore[reportPrivateUsage]


async def sessions(db: Database) -> list[int]:
    """The server process that wrote each row, in order."""
    return [row[0] for row in await db.con.fetch(f"SELECT session FROM {db.table} ORDER BY id")]


async def one_by_one(sink: PostgresSink, numbers: range) -> None:
    for number in numbers:
        assert await written(sink, [(number, "x")]) == {}


async def test_writes_in_a_row_use_one_connection_and_leave_the_pool_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """A pool without an idle connection shows that it was not returned in between."""
    async with database(embedded_postgres.dsn, COLUMNS) as db, db.sink() as sink:
        await one_by_one(sink, range(5))
        pool = connections_of(sink).pool
        assert (pool.get_size(), pool.get_idle_size()) == (1, 0)
        assert len(set(await sessions(db))) == 1


async def test_a_connection_that_no_write_used_goes_back_and_is_closed_by_the_pool(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    options = {"max_inactive_connection_lifetime": 0.02}
    closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def notice(con: Any) -> None:
        con.add_termination_listener(lambda _: closed.set_result(None))

    async with (
        database(embedded_postgres.dsn, COLUMNS) as db,
        db.sink(connect_options={**options, "init": notice}) as sink,
    ):
        await one_by_one(sink, range(5))
        await closed
        assert connections_of(sink).pool.get_size() == 0
        await one_by_one(sink, range(5, 6))


@pytest.mark.parametrize("hook", ["setup", "reset"])
async def test_hooks_for_each_loan_run_for_each_loan(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, hook: str
) -> None:
    ran: list[object] = []

    async def note(con: object) -> None:
        ran.append(con)

    async with (
        database(embedded_postgres.dsn, COLUMNS) as db,
        db.sink(connect_options={hook: note}) as sink,
    ):
        before = len(ran)
        await one_by_one(sink, range(5))
        assert len(ran) - before == 5


async def test_a_pool_of_the_applications_has_its_connections_back_after_each_write(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Otherwise the application's own code would wait for an idle connection of the sink."""
    async with (
        database(embedded_postgres.dsn, COLUMNS) as db,
        asyncpg.create_pool(db.dsn, min_size=0, max_size=1) as pool,
        PostgresSink(PostgresAccess(pool=pool), table=db.table, columns=("id", "word")) as sink,
    ):
        await one_by_one(sink, range(3))
        assert (pool.get_size(), pool.get_idle_size()) == (1, 1)
        assert await pool.fetchval("SELECT 1") == 1


async def test_a_connection_is_replaced_after_max_queries(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, COLUMNS) as db,
        db.sink(pool_size=1, connect_options={"max_queries": 10}) as sink,
    ):
        await one_by_one(sink, range(50))
        assert len(set(await sessions(db))) >= 3


async def test_a_connection_that_broke_while_it_was_idle_is_replaced(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, COLUMNS) as db, db.sink(pool_size=1) as sink:
        await one_by_one(sink, range(1))
        (session,) = await sessions(db)
        con = connections_of(sink).pool._holders[0]._con  # type: ignore[attr-defined]
        assert await db.con.fetchval("SELECT pg_terminate_backend($1, 5000)", session)
        while not con.is_closed():  # until the loop has read the end of the stream
            await db.con.fetchval("SELECT 1")
        await one_by_one(sink, range(1, 3))
        first, *others = await sessions(db)
        assert len(set(others)) == 1
        assert others[0] != first


async def test_a_refusal_replaces_the_kept_connections_as_well(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """A session keeps the permissions and settings that its role had at the start."""
    async with (
        database(embedded_postgres.dsn, COLUMNS) as db,
        role(db) as writer,
        db.sink(dsn=writer.dsn, pool_size=2) as sink,
    ):
        async with db.con.transaction():
            await db.con.execute(f"LOCK TABLE {db.table} IN ACCESS EXCLUSIVE MODE")
            both = [asyncio.create_task(written(sink, [(number, "x")])) for number in range(2)]
            await until_blocked(db.con, db.table)
        assert await asyncio.gather(*both) == [{}, {}]
        before = set(await sessions(db))
        await db.con.execute(f"REVOKE INSERT ON {db.table} FROM {writer.name}")
        whole(await written(sink, [(2, "x")]), 1)
        await writer.grant()
        async with db.con.transaction():
            await db.con.execute(f"LOCK TABLE {db.table} IN ACCESS EXCLUSIVE MODE")
            both = [asyncio.create_task(written(sink, [(number, "x")])) for number in (3, 4)]
            await until_blocked(db.con, db.table)
        assert await asyncio.gather(*both) == [{}, {}]
        assert before.isdisjoint((await sessions(db))[2:])


async def test_more_writers_than_connections_are_served_in_order(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """A writer without pauses delays none of the others."""
    async with (
        database(embedded_postgres.dsn, "id serial, word text") as db,
        db.sink(("word",), pool_size=1) as sink,
    ):

        async def write(word: str) -> None:
            for _ in range(10):
                assert await written(sink, [(word,)]) == {}

        await asyncio.gather(*[write(word) for word in "abc"])
        assert "".join([word for _, word in await db.rows("id")]) == "abc" * 10


async def test_a_cancelled_waiter_leaves_the_connection_to_the_next(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, COLUMNS) as db, db.sink(pool_size=1) as sink:
        async with db.con.transaction():
            await db.con.execute(f"LOCK TABLE {db.table} IN ACCESS EXCLUSIVE MODE")
            tasks = [asyncio.create_task(written(sink, [(number, "x")])) for number in range(4)]
            await until_blocked(db.con, db.table)
            tasks[0].cancel()
            tasks[2].cancel()
            await asyncio.wait([tasks[0], tasks[2]])
        assert [await tasks[1], await tasks[3]] == [{}, {}]
        assert {number for number, *_ in await db.rows()} >= {1, 3}


async def test_closing_returns_the_kept_connections_and_terminating_ends_them(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, COLUMNS) as db:
        async with db.sink() as sink:
            await one_by_one(sink, range(2))
            connections = connections_of(sink)
        assert connections.pool.get_size() == 0
        async with db.sink() as sink:
            await one_by_one(sink, range(2, 4))
            connections = connections_of(sink)
            connections.terminate()
            assert connections.pool.get_size() == 0
