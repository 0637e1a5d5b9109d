"""The source when locks, connections, permissions and the log itself fail.

White box: reads, notifications and the start of listening, which tests interrupt or wait for.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asyncpg import Connection
from tests.kafka.source.storm_help import log_lines
from tests.postgres.access_help import access_from
from tests.postgres.streams.log_help import Log, role

from sluicegate import ConfigError, flow
from sluicegate.consumer import Position
from sluicegate.postgres import PostgresSink, PostgresStreamSource, install_streams
from sluicegate.postgres.client.notifications import Waker
from sluicegate.postgres.streams import balancing
from sluicegate.postgres.streams.log import channel_of
from sluicegate.postgres.streams.log_reader import LogReader
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate.batcher import LoopClock

LONG = 60.0
"""Seconds that no test waits for."""
WITHIN = 45.0


class StreamHost(RecordingHost):
    """Records troubles."""

    def __init__(self) -> None:
        super().__init__()
        self.troubles: list[str | None] = []
        self.changed = asyncio.Event()

    def reported(self, trouble: str | None) -> None:
        self.troubles.append(trouble)
        self.changed.set()

    async def trouble(self, part: str | None) -> str:
        """Wait for the trouble with this text; `None`: for the end of troubles."""
        while True:
            now = self.troubles[-1] if self.troubles else None
            if (now is None) if part is None else (now is not None and part in now):
                return now or ""
            self.changed.clear()
            await self.changed.wait()


def source(log: Log, dsn: str | None = None, **options: Any) -> PostgresStreamSource:
    given: dict[str, Any] = {"poll": 0.02, "lease": LONG, "close_timeout": 20.0, **options}
    return PostgresStreamSource(
        access_from(dsn or log.dsn, given), subscription="s", schema=log.schema, **given
    )


async def fetched(source: PostgresStreamSource, host: RecordingHost) -> list[int]:
    """The positions of the next records."""
    found = await source.fetch(host.open, 100)
    assert found is not None
    return sorted(record.offset for each in found for record in each.records)


async def locked(log: Log) -> int:
    """The number of slots with an owner, according to the table."""
    async with log.connected() as con:
        count = await con.fetchval(
            f"SELECT count(*) FROM {log.sql}.subscription_slot "
            "WHERE owner IS NOT NULL OR lease_until IS NOT NULL"
        )
    return int(count)


@asynccontextmanager
async def failing_unlocks(log: Log) -> AsyncGenerator[None]:
    """Inside the block, statements that free a lease fail on the server."""
    async with log.connected() as con:
        await con.execute(
            f"CREATE FUNCTION {log.sql}.fail() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'no unlocking now'; END $$; "
            f"CREATE TRIGGER fail BEFORE UPDATE ON {log.sql}.subscription_slot FOR EACH ROW "
            "WHEN (new.lease_until IS NULL AND old.lease_until IS NOT NULL) "
            f"EXECUTE FUNCTION {log.sql}.fail()"
        )
        yield
        await con.execute(f"DROP FUNCTION {log.sql}.fail CASCADE")


async def test_slots_whose_unlock_failed_are_freed_later(log: Log, real_clock: LoopClock) -> None:
    """S-T8: long before their leases end; the looks that share the slots continue."""
    first, second = StreamHost(), StreamHost()
    async with asyncio.timeout(WITHIN), source(log).open(first):
        await first.wait_for_claims(256)
        async with failing_unlocks(log):
            async with source(log).open(second):
                await first.trouble("checking the subscription failed (RaiseError")
                assert not second.open
        async with source(log).open(second):
            await second.wait_for_claims(128)
            await first.trouble(None)
            assert len(first.open) == 128
    assert await locked(log) == 0


async def test_claims_end_with_their_leases_while_a_keep_has_no_answer(
    log: Log, real_clock: LoopClock
) -> None:
    """S-T8: the slots are claimed again when the server answers."""
    host = StreamHost()
    async with asyncio.timeout(WITHIN), source(log, lease=1.0).open(host):
        claims = await host.wait_for_claims(256)
        async with log.connected() as con, con.transaction():
            await con.execute(f"SELECT FROM {log.sql}.subscription_slot FOR UPDATE")
            await host.news.wait_for(lambda: all(claim.is_closed for claim in claims))
            assert not host.within, "a loss stores nothing"
        await host.wait_for_claims(256)
    assert await locked(log) == 0


@pytest.mark.parametrize("error", [RuntimeError("a handler"), asyncio.CancelledError()])
async def test_no_lock_stays_behind_an_error(
    log: Log, real_clock: LoopClock, error: BaseException
) -> None:
    """S-T8: after neither an exception in the consumer nor its cancellation."""
    host = StreamHost()
    with pytest.raises(type(error)):
        async with asyncio.timeout(WITHIN), source(log).open(host):
            await host.wait_for_claims(256)
            assert await locked(log) == 256
            raise error
    assert await locked(log) == 0
    assert not host.open


async def test_a_listening_connection_that_the_server_ends_is_replaced(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S17: the log is checked once, and notifications arrive again; no poll is needed."""
    host, reader = StreamHost(), source(log, poll=LONG)
    channel = channel_of(log.schema)
    listening, listen = asyncio.Event(), Connection.add_listener

    async def noted(con: Connection, *arguments: Any) -> None:
        await listen(con, *arguments)
        listening.set()

    monkeypatch.setattr(Connection, "add_listener", noted)
    async with asyncio.timeout(WITHIN), log.connected() as con, reader.open(host):
        await host.wait_for_claims(256)
        waiting = asyncio.create_task(fetched(reader, host))
        assert await log.append(con, "s-1", 1) == [1]
        await con.execute("SELECT pg_notify($1, '')", channel)
        assert await waiting == [1]
        for position in (2, 4):
            waiting = asyncio.create_task(fetched(reader, host))
            await asyncio.sleep(0)
            assert await log.append(con, "s-1", position) == [position]
            await listening.wait()
            listening.clear()
            ended = await con.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND query LIKE 'LISTEN %' "
                "AND position($1::text IN query) > 0",
                channel,
            )
            assert ended == 1
            assert await waiting == [position]
            waiting = asyncio.create_task(fetched(reader, host))
            await asyncio.sleep(0)
            assert await log.append(con, "s-1", position + 1) == [position + 1]
            await con.execute("SELECT pg_notify($1, '')", channel)
            assert await waiting == [position + 1]


async def test_a_notification_during_a_read_is_not_missed(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6, S17, S-T12: of a message behind the horizon of this read; no poll is needed."""
    host, reader = StreamHost(), source(log, poll=LONG)
    heard, is_due = asyncio.Event(), False
    read, notified = LogReader.horizon, Waker._on_notification

    def hear(waker: Waker, *told: object) -> None:
        notified(waker, *told)
        heard.set()

    monkeypatch.setattr(Waker, "_on_notification", hear)
    async with asyncio.timeout(WITHIN), log.connected() as con, reader.open(host):

        async def horizon(reading: LogReader) -> Any:
            nonlocal is_due
            found = await read(reading)
            if is_due:
                is_due = False
                await log.append(con, "s-1", 2)
                await con.execute("SELECT pg_notify($1, '')", channel_of(log.schema))
                await heard.wait()
            return found

        await host.wait_for_claims(256)
        waiting = asyncio.create_task(fetched(reader, host))
        await log.append(con, "s-1", 1)
        await con.execute("SELECT pg_notify($1, '')", channel_of(log.schema))
        assert await waiting == [1]
        heard.clear()
        monkeypatch.setattr(LogReader, "horizon", horizon)
        is_due = True
        assert await fetched(reader, host) == [2]


async def test_the_transaction_that_holds_the_horizon_is_named(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S18: with its process, application, user and age, until it ends; a transaction that has not
    appended does not hold it.
    """
    monkeypatch.setattr(balancing, "STANDS_AFTER", 0.1)
    host, reader = StreamHost(), source(log)
    importer = log.connected(server_settings={"application_name": "importer"})
    async with asyncio.timeout(WITHIN), log.connected() as con, importer as other:
        foreign, appending = other, con
        await foreign.execute("BEGIN; SELECT pg_current_xact_id()")
        async with reader.open(host):
            await host.wait_for_claims(256)
            await log.append(appending, "s-1", 1)
            assert await fetched(reader, host) == [1]
            await log.append(other, "s-2", 1)
            await log.append(appending, "s-3", 1)
            told = await host.trouble("holds the horizon")
            pid = await other.fetchval("SELECT pg_backend_pid()")
            user = await other.fetchval("SELECT current_user")
            assert f"pid {pid}, application 'importer', user '{user}'" in told
            assert "open for " in told
            await other.execute("COMMIT")
            assert await fetched(reader, host) == [2, 3]
            await host.trouble(None)


async def test_a_stored_position_beyond_the_log_is_an_error(
    log: Log, real_clock: LoopClock
) -> None:
    """S18: for example after the restore of an older copy; new messages would count as read. Raised
    by the opening, and by a fetch of a process that is already open.
    """
    host, reader = StreamHost(), source(log)
    told = r"slot 7 .* position 1000, .* restored .* reset"
    async with asyncio.timeout(WITHIN), log.connected() as con:
        await log.append(con, "s-1", 1, 2, 3)
        async with reader.open(host):
            await host.wait_for_claims(256)
            await con.execute(
                f"UPDATE {log.sql}.subscription_slot SET position = 1000 WHERE slot = 7"
            )
            await host.trouble("position 1000")
            with pytest.raises(ConfigError, match=told):
                await reader.fetch([], 1)
        with pytest.raises(ConfigError, match=told):
            async with reader.open(StreamHost()):
                pass


async def test_a_position_in_the_destination_beyond_the_log_stops_a_transactional_flow(
    log: Log, real_clock: LoopClock
) -> None:
    """S18: the destination is another database than the restored one. Otherwise new messages would
    never be written.
    """
    table = f"rows_{log.schema}"

    def flowing() -> flow.TransactionalPipe:
        source = PostgresStreamSource(log.dsn, subscription="s", schema=log.schema, ends=True)
        sink = PostgresSink(log.dsn, table=table, columns=("n",), positions=f"{table}_at")
        return flow.transaction(source, sink, lambda message: (message.offset,))

    async with asyncio.timeout(WITHIN), log.connected() as con:
        await con.execute(f"CREATE TABLE {table} (n bigint)")
        await log.append(con, "s-1", 1, 2)
        await flowing().run()
        await con.execute(f"UPDATE {table}_at SET position = 1000")
        async with log_lines() as told:
            running = asyncio.ensure_future(flowing().run())
            await told.wait("slot . .* position 1000, .* restored .* in the destination")
            running.cancel()
            await asyncio.wait([running])
        await con.execute(f"DELETE FROM {table}_at")
        await log.append(con, "s-1", 3)
        await flowing().run()
        assert [*await con.fetch(f"SELECT n FROM {table} ORDER BY n")] == [(1,), (2,), (3,)]
        await con.execute(f"DROP TABLE {table}, {table}_at")


async def test_a_role_that_subscribes_is_enough_and_a_revoked_right_is_an_outage(
    log: Log, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S-T8: the trouble names the permission; no claim ends, and the messages arrive when it is
    granted again.
    """
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(WITHIN), role(log) as app, log.connected() as con:
        with pytest.raises(ConfigError, match=f"may not be used by the role '{app.name}'"):
            async with source(log, app.dsn).open(StreamHost()):
                pass
        await install_streams(log.dsn, schema=log.schema, subscribe=app.name)
        host, reader = StreamHost(), source(log, app.dsn)
        async with reader.open(host):
            claims = await host.wait_for_claims(256)
            await log.append(con, "s-1", 1)
            assert await fetched(reader, host) == [1]
            slot = await con.fetchval(f"SELECT {log.sql}.slot_of('s-1')")
            (claim,) = [each for each in claims if each.partition.partition == slot]
            assert [*await reader.commit({claim: Position(2)})] == [claim]
            await con.execute(f"REVOKE SELECT ON {log.sql}.message FROM {app.name}")
            await log.append(con, "s-1", 2)
            waiting = asyncio.create_task(fetched(reader, host))
            await host.trouble("permission denied for table message")
            await con.execute(f"GRANT SELECT ON {log.sql}.message TO {app.name}")
            assert await waiting == [2]
            await host.trouble(None)
            assert host.open == claims
        assert await locked(log) == 0
    assert "secret" not in caplog.text


async def test_a_schema_that_is_missing_is_named_at_the_opening(
    log: Log, real_clock: LoopClock
) -> None:
    """The error contains the command that installs it, before anything is served."""
    missing = PostgresStreamSource(log.dsn, subscription="s", schema="nowhere")
    with pytest.raises(ConfigError, match="sluicegate pg install DSN --schema nowhere"):
        async with missing.open(StreamHost()):
            pass
