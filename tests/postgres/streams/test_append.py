"""Appending on the user's own connection and in the user's own transaction, with every driver.

White box: the reading of an error that belongs to no connection.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tests.postgres.streams.drivers_help import DRIVERS, Alchemy, Psycopg

from sluicegate import ConfigError, RefusedError, SinkError
from sluicegate.errors import MessageIdConflict, VersionConflict
from sluicegate.postgres import NO_STREAM, NewMessage, StreamLog
from sluicegate.postgres.streams.log import append_call, append_error

if TYPE_CHECKING:
    from tests.postgres.streams.drivers_help import Driver
    from tests.postgres.streams.log_help import Log

PLACED = NewMessage("OrderPlaced", {"total": 3, "word": "schön ☃"}, {"trace": "a1"})
PAID = NewMessage("OrderPaid", [1, None, True, "x"])


@pytest.fixture(params=DRIVERS, ids=lambda kind: kind.__name__)
def driver(log: Log, request: pytest.FixtureRequest) -> Driver:
    made: Driver = request.param(log)
    return made


async def stored(log: Log, stream: str) -> list[tuple[Any, ...]]:
    async with log.connected() as con:
        rows = await con.fetch(
            f"SELECT version, type, data, metadata FROM {log.sql}.message "
            "WHERE stream = $1 ORDER BY version",
            stream,
        )
    return [(row[0], row[1], json.loads(row[2]), json.loads(row[3])) for row in rows]


class Cancelled(Exception):
    """An exception that ends a transaction."""


def test_messages_are_in_the_log_when_the_transaction_commits(log: Log, driver: Driver) -> None:
    async def run() -> None:
        async with driver.transaction() as con:
            await driver.execute(con, f"CREATE TABLE {log.sql}.mine (n int)")
            first, second = await driver.append(con, "order-1", PLACED, PAID)
            assert await stored(log, "order-1") == []
        assert (first.version, second.version) == (0, 1)
        assert 0 < first.position < second.position
        assert first.is_new
        assert first.at.tzinfo is UTC
        assert abs(datetime.now(UTC) - first.at) < timedelta(minutes=1)
        assert first.id != second.id
        assert await stored(log, "order-1") == [
            (0, "OrderPlaced", {"total": 3, "word": "schön ☃"}, {"trace": "a1"}),
            (1, "OrderPaid", [1, None, True, "x"], {}),
        ]

    asyncio.run(run())


def test_nothing_is_in_the_log_when_the_transaction_rolls_back(log: Log, driver: Driver) -> None:
    async def run() -> None:
        with pytest.raises(Cancelled):
            async with driver.transaction() as con:
                await driver.append(con, "order-1", PLACED)
                raise Cancelled
        assert await stored(log, "order-1") == []
        async with driver.transaction() as con:
            (again,) = await driver.append(con, "order-1", PAID)
        assert again.version == 0

    asyncio.run(run())


def test_a_savepoint_is_rolled_back_alone(log: Log, driver: Driver) -> None:
    """Messages appended before it stay, and the versions continue behind them."""

    async def run() -> None:
        async with driver.transaction() as con:
            await driver.append(con, "order-1", PLACED)
            with pytest.raises(Cancelled):
                async with driver.savepoint(con):
                    await driver.append(con, "order-1", PLACED)
                    raise Cancelled
            with pytest.raises(VersionConflict):
                async with driver.savepoint(con):
                    await driver.append(con, "order-1", PLACED, expected=7)
            (last,) = await driver.append(con, "order-1", PAID, expected=0)
        assert last.version == 1
        assert [row[:2] for row in await stored(log, "order-1")] == [
            (0, "OrderPlaced"),
            (1, "OrderPaid"),
        ]

    asyncio.run(run())


def test_the_expected_version_is_checked(log: Log, driver: Driver) -> None:
    async def run() -> None:
        with pytest.raises(VersionConflict) as absent:
            async with driver.transaction() as con:
                await driver.append(con, "order-1", PLACED, expected=4)
        async with driver.transaction() as con:
            await driver.append(con, "order-1", PLACED, PLACED, expected=NO_STREAM)
        with pytest.raises(VersionConflict) as there:
            async with driver.transaction() as con:
                await driver.append(con, "order-1", PAID, expected=NO_STREAM)
        async with driver.transaction() as con:
            await driver.append(con, "order-1", PAID, expected=1)
        for error, expected, actual in ((absent.value, 4, -1), (there.value, -1, 1)):
            assert (error.stream, error.expected, error.actual) == ("order-1", expected, actual)
            assert isinstance(error.__cause__, Exception)
        assert str(there.value) == (
            "stream 'order-1': expected that it does not exist, but it is at version 1; read it "
            "again, and append in a new transaction"
        )
        assert [row[0] for row in await stored(log, "order-1")] == [0, 1, 2]

    asyncio.run(run())


def test_an_error_that_hides_the_servers_detail_is_read_behind_it() -> None:
    """SQLAlchemy 2.0 re-raises the SQLSTATE of asyncpg's error without its other fields."""

    class Adapted(Exception):
        sqlstate = "PS001"

    server = asyncpg.PostgresError.new({"C": "PS001", "M": "the stream moved", "D": "4"})
    adapted = Adapted("the adapter's text")
    adapted.__cause__ = server
    error = RuntimeError("the session's text")
    error.__cause__ = adapted
    told = append_error(append_call("sluicegate", "order-1", [PLACED], 2), error)
    assert isinstance(told, VersionConflict)
    assert (told.expected, told.actual) == (2, 4)
    assert told.__cause__ is error


def test_a_message_with_an_id_is_appended_once(log: Log, driver: Driver) -> None:
    """Also if the retry expects the version from before its first attempt."""

    async def run() -> None:
        named = NewMessage("OrderPaid", {"n": 1}, id=uuid4())
        async with driver.transaction() as con:
            first = await driver.append(con, "order-1", named, expected=NO_STREAM)
        async with driver.transaction() as con:
            again = await driver.append(con, "order-1", named, expected=NO_STREAM)
        assert first[0].is_new
        assert again == [first[0]._replace(is_new=False)]
        for stream, other in (
            ("order-1", NewMessage("OrderPaid", {"n": 2}, id=named.id)),
            ("order-2", named),
        ):
            with pytest.raises(MessageIdConflict) as caught:
                async with driver.transaction() as con:
                    await driver.append(con, stream, other)
            assert str(named.id) in str(caught.value)
            assert caught.value.stream == stream
        assert len(await stored(log, "order-1")) == 1

    asyncio.run(run())


def test_a_log_that_is_not_installed_is_refused_with_the_command(driver: Driver) -> None:
    driver.log = StreamLog("nowhere")

    async def run() -> None:
        with pytest.raises(RefusedError) as caught:
            async with driver.transaction() as con:
                await driver.append(con, "order-1", PLACED)
        assert 'schema "nowhere" does not exist' in str(caught.value)
        assert caught.value.repair.startswith("sluicegate pg install --schema nowhere")

    asyncio.run(run())


def test_a_role_that_may_not_append_is_refused_with_the_command(log: Log, driver: Driver) -> None:
    async def run() -> None:
        async with log.connected() as con:
            await con.execute(f"CREATE ROLE nobody_of_{log.schema}")
        try:
            with pytest.raises(RefusedError) as caught:
                async with driver.transaction() as con:
                    await driver.execute(con, f"SET LOCAL ROLE nobody_of_{log.schema}")
                    await driver.append(con, "order-1", PLACED)
            assert "permission denied" in str(caught.value)
            assert "--append ROLE" in caught.value.repair
        finally:
            async with log.connected() as con:
                await con.execute(f"DROP ROLE nobody_of_{log.schema}")

    asyncio.run(run())


def test_any_other_error_is_the_drivers_own(driver: Driver) -> None:
    async def run() -> None:
        with pytest.raises(Exception, match="read-only transaction") as caught:
            async with driver.transaction() as con:
                await driver.execute(con, "SET TRANSACTION READ ONLY")
                await driver.append(con, "order-1", PLACED)
        assert not isinstance(caught.value, SinkError)

    asyncio.run(run())


@pytest.mark.parametrize("expected", [None, "read"])
def test_concurrent_appenders_share_a_stream_without_gaps(log: Log, expected: str | None) -> None:
    """With an expected version they read it first and retry after a conflict, as required."""

    async def appends(number: int) -> int:
        conflicts = 0
        made = StreamLog(log.schema)
        async with log.connected() as con:
            for n in range(10):
                message = NewMessage("Counted", {"from": number, "n": n})
                while True:
                    version = None if expected is None else await last_version(con)
                    try:
                        async with con.transaction():
                            await made.append(con, "counter-1", message, expected=version)
                        break
                    except VersionConflict:
                        conflicts += 1
        return conflicts

    async def last_version(con: Any) -> int:
        found: int = await con.fetchval(f"SELECT {log.sql}.last_version('counter-1')")
        return found

    async def run() -> None:
        conflicts = sum(await asyncio.gather(*map(appends, range(8))))
        assert (conflicts > 0) is (expected is not None)
        rows = await stored(log, "counter-1")
        assert [row[0] for row in rows] == list(range(80))
        for number in range(8):
            assert [row[2]["n"] for row in rows if row[2]["from"] == number] == [*range(10)]

    asyncio.run(run())


def test_an_id_that_another_transaction_takes_meanwhile_is_a_conflict(log: Log) -> None:
    """The second message of a call is appended to another stream by a transaction that is still
    open.
    """

    async def run() -> None:
        made, taken = StreamLog(log.schema), uuid4()
        async with log.connected() as one, log.connected() as other:
            transaction = one.transaction()
            await transaction.start()
            await made.append(one, "order-1", NewMessage("Taken", 1, id=taken))
            later = asyncio.create_task(
                made.append(other, "order-2", [PLACED, NewMessage("Taken", 1, id=taken)])
            )
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while not await one.fetchval(blocked):
                pass
            await transaction.commit()
            with pytest.raises(MessageIdConflict):
                await later
        assert await stored(log, "order-2") == []

    asyncio.run(run())


def test_a_connection_of_another_kind_is_named_with_what_to_use(log: Log) -> None:
    dsn = log.dsn
    made = StreamLog(log.schema)

    async def fails(connection: Any, hint: str) -> None:
        with pytest.raises(ConfigError, match="connection=") as caught:
            await made.append(connection, "order-1", PLACED)
        assert hint in str(caught.value)

    async def run() -> None:
        await fails(Alchemy(log).url, "must be a connection of asyncpg")
        await fails(None, "NoneType: must be a connection of asyncpg")
        with psycopg.connect(dsn) as con:
            await fails(con, "psycopg.Connection: must be a connection of asyncpg")
        engine = create_engine("sqlite://")
        with (
            Session(engine) as session,
            pytest.raises(ConfigError, match="'sqlite': the log is in"),
        ):
            made.append_sync(session, "order-1", PLACED)
        async with Psycopg(log).transaction() as asynchronous:
            with pytest.raises(ConfigError, match="must be a Connection of psycopg 3"):
                made.append_sync(asynchronous, "order-1", PLACED)
        with pytest.raises(ConfigError, match="must be a Connection of psycopg 3"):
            made.append_sync(sqlite3.connect(":memory:"), "order-1", PLACED)  # type: ignore[arg-type]

    asyncio.run(run())


def test_append_works_with_row_and_type_settings_of_the_users(log: Log) -> None:
    """Codecs for every type of the result change nothing."""

    async def run() -> None:
        async with log.connected() as con:
            for name in ("uuid", "timestamptz", "jsonb"):
                await con.set_type_codec(
                    name, schema="pg_catalog", encoder=str, decoder=lambda text: None, format="text"
                )
            (made,) = await StreamLog(log.schema).append(con, "order-1", PLACED)
            assert made.id.version == 4
            assert made.at.tzinfo is UTC

    asyncio.run(run())
