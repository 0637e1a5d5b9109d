"""`SqlSink` with killed servers, lost responses and missing permissions.

White box: errors are judged by the class that a retry would see.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from tests.sql.sql_help import SqlTable, written

from sluicegate import (
    Backoff,
    Batcher,
    ErrorClass,
    Limits,
    Outcome,
    Retry,
    RowBatch,
    send,
    stack,
)
from sluicegate._core.classify import classified
from sluicegate.batcher import LoopClock

if TYPE_CHECKING:
    from tests.sql.mariadb import MariaDbServer

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()
LOCKED = (
    "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table %%'"
)


async def test_a_server_that_is_killed_under_load(mariadb: MariaDbServer) -> None:
    """Every row is stored once, and every outcome is correct."""
    table = SqlTable(mariadb.url())
    await asyncio.to_thread(table.make)
    retry = Retry(attempts=20, give_up_after=60.0, backoff=Backoff(base=0.05, jitter="none"))
    receipts: list[Any] = []
    async with Batcher(
        stack(table.sink(pool_size=4), retry),
        limits=Limits(max_items=50, max_delay=0.01, workers=4),
    ) as batcher:

        async def produce() -> None:
            for number in range(6000):
                receipts.append(await batcher.submit((number, "w")))
                if number % 20 == 0:
                    await CLOCK.sleep(0.001)

        producing = asyncio.create_task(produce())
        for least in (1000, 3000):
            while sum(receipt.done for receipt in receipts[:least]) < least:
                await CLOCK.sleep(0.01)
            await asyncio.to_thread(mariadb.kill)
            await asyncio.to_thread(mariadb.start)
        await producing
        outcomes = [await receipt.settled() for receipt in receipts]
    assert {*outcomes} <= {Outcome.DELIVERED, Outcome.DUPLICATE}
    assert sorted(await table.looked()) == [(number, "w") for number in range(6000)]


async def test_a_right_that_is_missing_gives_no_row_up(mariadb: MariaDbServer) -> None:
    """Once it is granted, the rows are stored."""
    SqlTable(mariadb.url()).run(
        "CREATE DATABASE IF NOT EXISTS rights"
    )  # everyone may use the one named test
    table = SqlTable(mariadb.url(database="rights"))
    table.make()
    for statement in (
        "CREATE USER IF NOT EXISTS clerk IDENTIFIED BY 'c'",
        "GRANT SELECT ON rights.* TO clerk",
    ):
        table.run(statement)
    url = sa.make_url(table.url).set(username="clerk", password="c")
    async with table.sink(url=url.render_as_string(hide_password=False)) as sink:
        errors = await written(sink, [(1, "a"), (2, "b")])
        assert {*errors} == {0, 1}
        kinds = {classified(error, sink.classify) for error in errors.values()}
        assert kinds == {ErrorClass.REFUSED}, errors
        table.run("GRANT INSERT ON rights.words TO clerk")
        assert await written(sink, [(1, "a"), (2, "b")]) == {}
    assert await table.looked() == [(1, "a"), (2, "b")]


async def until_locked(table: SqlTable) -> None:
    """Wait until a statement waits for the lock of a table."""

    def is_waiting() -> bool:
        with table.engine.connect() as look:
            return bool(look.exec_driver_sql(LOCKED).scalar())

    while not await asyncio.to_thread(is_waiting):
        pass


async def test_a_write_that_is_cancelled_waits_for_its_thread(mariadb: MariaDbServer) -> None:
    """It does not overtake the next write; its stored rows are found by the key."""
    table = SqlTable(mariadb.url())
    table.make()
    with table.engine.connect() as con:
        con.exec_driver_sql("LOCK TABLES words WRITE")
        async with table.sink(close_timeout=5.0) as sink:
            batch = RowBatch([(1, "a")])
            write = asyncio.create_task(send(sink, batch))
            await until_locked(table)
            write.cancel()
            await CLOCK.sleep(0.2)
            assert not write.done()
            await asyncio.to_thread(con.exec_driver_sql, "UNLOCK TABLES")
            await asyncio.wait([write], timeout=30.0)
            assert write.cancelled()
            assert await send(sink, batch) == {}
    assert await table.looked() == [(1, "a")]


async def test_a_cancelled_write_that_waits_for_a_thread_is_not_made(
    mariadb: MariaDbServer,
) -> None:
    """Otherwise it would run late and overtake its retry."""
    table = SqlTable(mariadb.url())
    table.make()
    with table.engine.connect() as con:
        async with table.sink(pool_size=1, on_conflict="update") as sink:
            con.exec_driver_sql("LOCK TABLES words WRITE")
            first = asyncio.create_task(send(sink, RowBatch([(1, "a")])))
            second = asyncio.create_task(send(sink, RowBatch([(2, "late")])))
            await until_locked(table)
            second.cancel()
            await asyncio.wait([second], timeout=30.0)
            assert second.cancelled()
            await asyncio.to_thread(con.exec_driver_sql, "UNLOCK TABLES")
            assert await first == {}
            assert await written(sink, [(3, "c")]) == {}
    assert await table.looked() == [(1, "a"), (3, "c")]
