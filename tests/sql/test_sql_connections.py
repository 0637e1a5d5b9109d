"""The connections of a `SqlSink`: kept between writes, discarded when lost, closed with the
sink.

White box: the connections of a sink are also used directly.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import QueuePool
from tests.sql.conftest import table_of
from tests.sql.sql_help import SqlTable, names, written

from sluicegate import ConfigError, RowBatch, UnavailableError, send
from sluicegate.batcher import LoopClock
from sluicegate.sql import SqlSink
from sluicegate.sql.engine import SqlConnections

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()

SESSIONS = {
    "mysql": "SELECT id FROM information_schema.processlist WHERE command <> 'Daemon' AND id <> CONNECTION_ID()"
    " ORDER BY id",
}
SERVERS = ["pymysql"]


@pytest.fixture(params=SERVERS)
def driver(request: pytest.FixtureRequest) -> str:
    made: str = request.param
    return made


@pytest.fixture
def table(request: pytest.FixtureRequest, driver: str, tmp_path: Path) -> SqlTable:
    """The table of a server."""
    made = table_of(request, driver, tmp_path)
    made.make()
    return made


async def until_sessions(table: SqlTable, is_met: Callable[[list[int]], bool]) -> list[int]:
    """Wait for these sessions, as seen by one other: the server ends closed ones on its own time."""

    def look() -> list[int]:
        return [*con.exec_driver_sql(SESSIONS[table.name]).scalars()]

    con = await asyncio.to_thread(table.engine.connect)
    try:
        async with asyncio.timeout(60):
            while not is_met(found := await asyncio.to_thread(look)):
                pass
    finally:
        await asyncio.to_thread(con.close)
    return found


async def sessions(table: SqlTable) -> list[int]:
    return await until_sessions(table, lambda _: True)


async def test_a_connection_is_kept_between_writes(table: SqlTable) -> None:
    """Also after a refused row and after a transaction of several statements; no transaction stays
    open afterwards.
    """
    await until_sessions(table, lambda found: not found)
    async with table.sink(pool_size=2) as sink:
        assert await written(sink, [(1, "a")]) == {}
        before = await until_sessions(table, lambda found: len(found) == 1)
        assert names(await written(sink, [(2, "b"), (3, None)])) == {1: "PermanentError"}
        assert await written(sink, [(number, "w") for number in range(10, 40_010)]) == {}
        assert await written(sink, [(4, "d")]) == {}
        await until_sessions(table, lambda found: found == before)
        batches = [[(number, "w")] for number in range(50_000, 50_020)]
        assert {
            len(await task)
            for task in [asyncio.create_task(written(sink, each)) for each in batches]
        } == {0}
        await until_sessions(table, lambda found: len(found) == 2)
    await until_sessions(table, lambda found: not found)


async def test_a_connection_that_was_ended_is_replaced(table: SqlTable) -> None:
    """The rows of that write are unknown and found by key; the other idle connections are
    discarded, too.
    """
    async with table.sink(pool_size=3) as sink:
        await asyncio.gather(*[written(sink, [(number, "w")]) for number in range(9)])
        ended = await sessions(table)
        for each in ended:
            await asyncio.to_thread(table.run, f"KILL {each}")
        batch = RowBatch([(10, "a"), (11, "b")])
        assert {*names(await send(sink, batch)).values()} <= {"UnknownOutcomeError"}
        assert await send(sink, batch) == {}
        assert await written(sink, [(12, "c")]) == {}
        await until_sessions(table, lambda found: not {*ended} & {*found})
    assert sorted(await table.looked())[9:] == [(10, "a"), (11, "b"), (12, "c")]


async def test_a_connection_that_was_ended_while_it_was_idle(table: SqlTable) -> None:
    """It is tested before a write, whose rows would otherwise be unknown, and without a key stay
    unknown.
    """
    table.make("id INT NOT NULL, word VARCHAR(20) NOT NULL")
    async with table.sink(pool_size=3) as sink:
        await asyncio.gather(*[written(sink, [(number, "w")]) for number in range(9)])
        for each in await sessions(table):
            await asyncio.to_thread(table.run, f"KILL {each}")
        await CLOCK.sleep(1.1)
        assert await written(sink, [(9, "w")]) == {}
    assert sorted(await table.looked()) == [(number, "w") for number in range(10)]


async def test_a_column_whose_type_changes_under_an_open_sink(table: SqlTable) -> None:
    """Statements that the driver prepared for the earlier type are discarded."""
    change = "ALTER TABLE words MODIFY word INT NOT NULL"
    async with table.sink() as sink:
        assert await written(sink, [(1, "7"), (2, "8")]) == {}
        await asyncio.to_thread(table.run, "DELETE FROM words")
        await asyncio.to_thread(table.run, change)
        for number in range(3, 9, 2):
            assert await written(sink, [(number, 5), (number + 1, 6)]) == {}
    assert [word for (word,) in await table.looked("word")] == [5, 6] * 3


def test_the_isolation_level_is_the_sinks() -> None:
    with pytest.raises(ConfigError, match=r"isolation_level.*is set by Sluicegate"):
        SqlSink(
            "sqlite:///a.db",
            table="t",
            columns=["id"],
            engine_options={"isolation_level": "SERIALIZABLE"},
        )


def test_a_connection_whose_mode_cannot_be_set_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example if the server dies in between. The garbage collector has nothing to clean up."""
    engine = create_engine("sqlite://", poolclass=QueuePool)
    connections = SqlConnections(engine, is_own=False)

    def fail(*_: object) -> None:
        raise ConnectionError("lost")

    monkeypatch.setattr(engine.dialect, "set_isolation_level", fail)
    with pytest.raises(UnavailableError, match="lost") as caught:
        connections.call(lambda con: con)
    assert caught.tb is not None  # its frames keep references
    assert engine.pool.status().count("Current Checked out connections: 0") == 1
