"""Faults and changed settings of a pooler and its servers while a sink is open: no row is at fault,
and none is lost.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.pooler.pgbouncer import running
from tests.postgres.sink.postgres_help import database, until_blocked, whole, written

from sluicegate import (
    Backoff,
    Batcher,
    ConfigError,
    DeadLetter,
    ErrorClass,
    Limits,
    RefusedError,
    Retry,
    ThrottledError,
    UnavailableError,
    stack,
)
from sluicegate.sinks import MemorySink
from sluicegate.testing import embedded_postgres as own_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

AWAY = {ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.THROTTLE, ErrorClass.TRANSIENT}


def rows(start: int, count: int = 20) -> list[tuple[int, str]]:
    return [(start + number, "x") for number in range(count)]


def only(errors: dict[int, BaseException]) -> BaseException:
    """The single error of a whole write."""
    assert len({id(error) for error in errors.values()}) == 1, errors
    return errors[0]


@asynccontextmanager
async def restored(bouncer: PgBouncer) -> AsyncGenerator[None]:
    """Restore the pooler's usual settings at the end."""
    try:
        yield
    finally:
        await bouncer.restart()


@asynccontextmanager
async def busy(dsn: str, clients: int) -> AsyncGenerator[None]:
    """Clients that occupy one server each."""
    found = [await asyncpg.connect(dsn, statement_cache_size=0) for _ in range(clients)]
    try:
        for con in found:
            await con.execute("BEGIN; SELECT 1")
        yield
    finally:
        for con in found:
            con.terminate()


async def test_a_full_pool_is_an_outage(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    """query_wait_timeout; PgBouncer checks it three times a second."""
    async with (
        restored(bouncer),
        database(embedded_postgres.dsn) as db,
        db.sink(dsn=bouncer.dsn) as sink,
    ):
        assert await written(sink, rows(0)) == {}
        await bouncer.restart(default_pool_size="2")
        async with busy(bouncer.dsn, 2):
            await bouncer.reload(default_pool_size="2", query_wait_timeout="0.1")
            error = only(await written(sink, rows(100)))
            assert type(error) is UnavailableError
            assert "query_wait_timeout" in str(error)
            await bouncer.reload(default_pool_size="2")
        assert await written(sink, rows(100)) == {}
        assert len(await db.rows()) == 40


async def test_too_many_clients_are_throttling(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    async with (
        restored(bouncer),
        database(embedded_postgres.dsn) as db,
        db.sink(dsn=bouncer.dsn) as sink,
    ):
        await bouncer.reload(max_client_conn="1")
        await sink._opened().connections.pool.expire_connections()  # pyright: ignore[reportPrivateUsage]
        async with sink._opened().connections.lent():  # pyright: ignore[reportPrivateUsage]
            assert type(only(await written(sink, rows(0)))) is ThrottledError
        assert await written(sink, rows(0)) == {}
        assert len(await db.rows()) == 20


async def test_a_pause_only_delays(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(dsn=bouncer.dsn) as sink:
        await bouncer.command("PAUSE")
        write = asyncio.ensure_future(written(sink, rows(0)))
        await bouncer.command("RESUME")
        assert await write == {}
        assert len(await db.rows()) == 20


async def test_a_database_that_is_killed_or_disabled_blames_no_row(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(dsn=bouncer.dsn) as sink:
        assert await written(sink, rows(0)) == {}
        await bouncer.command("KILL postgres")
        await bouncer.command("DISABLE postgres")
        first = only(await written(sink, rows(100)))
        assert sink.classify(first) in AWAY
        second = only(await written(sink, rows(100)))
        assert isinstance(second, RefusedError)
        assert "ENABLE" in second.repair
        await bouncer.command("ENABLE postgres")
        await bouncer.command("RESUME postgres")
        assert await written(sink, rows(100)) == {}
        assert len(await db.rows()) == 40


@pytest.mark.long
async def test_a_pooler_and_a_server_that_crash_lose_no_row(real_clock: LoopClock) -> None:
    """The server is killed behind the pooler, and the pooler behind the sink, while rows arrive."""
    with there_or_skip("postgres", own_postgres({"fsync": "off"})) as server:
        with there_or_skip("pgbouncer", running(server)) as bouncer:
            async with database(server.dsn) as db:
                letters: MemorySink[Any] = MemorySink()
                retry = Retry(backoff=Backoff(base=0.02, longest=0.1))
                sink = stack(
                    db.sink(dsn=bouncer.dsn, on_conflict="ignore"), retry, DeadLetter(letters)
                )
                limits = Limits(max_items=25, max_delay=0.01, workers=4)
                async with Batcher(sink, limits=limits) as batcher:
                    await batcher.add_many(rows(0, 500))
                    await asyncio.to_thread(server.kill)
                    await batcher.add_many(rows(500, 300))
                    await asyncio.to_thread(server.start)
                    await batcher.add_many(rows(1000, 300))
                    await bouncer.restart()
                    await batcher.add_many(rows(2000, 300))
            async with database(server.dsn) as again:
                found = await again.con.fetchval(f"SELECT count(*) FROM {db.table}")
            assert (found, letters.items) == (1400, [])


async def test_cancelling_a_write_ends_its_statement(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    """The cancellation reaches the server that runs the statement, through the pooler."""
    async with database(embedded_postgres.dsn) as db, db.sink(dsn=bouncer.dsn) as sink:
        async with db.con.transaction():
            await db.con.execute(f"LOCK TABLE {db.table}")
            write = asyncio.ensure_future(written(sink, rows(0)))
            await until_blocked(db.con, db.table)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            await until_blocked(db.con, db.table, is_blocked=False)
        assert await db.rows() == []
        assert await written(sink, rows(0)) == {}


# -- settings --------------------------------------------------------------------------------------


async def test_it_goes_on_in_session_mode_and_after_a_reset_of_each_session(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    async with (
        restored(bouncer),
        database(embedded_postgres.dsn) as db,
        db.sink(dsn=bouncer.dsn) as sink,
    ):
        assert await written(sink, rows(0)) == {}
        await bouncer.reload(pool_mode="session")
        assert await written(sink, rows(100)) == {}
        await bouncer.reload(
            pool_mode="transaction", server_reset_query="DISCARD ALL", server_reset_query_always="1"
        )
        assert await written(sink, rows(200, 300)) == {}
        assert len(await db.rows()) == 340


async def test_a_pooler_without_transactions_is_refused_at_opening(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    async with restored(bouncer), database(embedded_postgres.dsn) as db:
        await bouncer.reload(pool_mode="statement")
        with pytest.raises(ConfigError, match="set pool_mode = transaction"):
            async with db.sink(dsn=bouncer.dsn):
                pass


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"database": "nothing_there"}, "nothing_there"),
        ({"user": "stranger"}, "auth_file, auth_query"),
        ({"server_settings": {"search_path": "x"}}, "leave the parameter out of the DSN"),
    ],
)
async def test_what_a_pooler_refuses_is_told_at_opening(
    embedded_postgres: EmbeddedPostgres,
    bouncer: PgBouncer,
    real_clock: LoopClock,
    change: dict[str, Any],
    told: str,
) -> None:
    async with database(embedded_postgres.dsn) as db:
        with pytest.raises(ConfigError, match=told) as caught:
            async with db.sink(dsn=bouncer.dsn, connect_options=change):
                pass
        assert "@" not in str(caught.value)


async def test_prepared_statements_that_get_lost_are_refused_with_the_option(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    """`prepared_statements=True` with a pooler that does not keep them: no row is at fault."""
    async with (
        database(embedded_postgres.dsn) as db,
        busy(bouncer.dsn, 1),
        db.sink(dsn=bouncer.dsn, prepared_statements=True) as sink,
        db.sink(dsn=bouncer.dsn, prepared_statements=True) as other,
    ):
        stored = 0
        for number in range(30):
            both = await asyncio.gather(
                written(sink, rows(number * 1000)), written(other, rows(number * 1000 + 500))
            )
            for errors in both:
                stored += 0 if errors else 20
                if errors:
                    assert sink.classify(only(errors)) in AWAY
                    assert isinstance(only(errors), RefusedError)
                    assert "prepared_statements=" in str(only(errors))
        assert len(await db.rows()) == stored


LOSES = """
    CREATE FUNCTION {0}_lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM pg_prepared_statements) THEN RAISE EXCEPTION 'prepared statement "x" does not exist' USING ERRCODE = '26000'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER one BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_lose()
"""


@pytest.mark.parametrize("options", [{}, {"on_conflict": "ignore"}], ids=str)
async def test_statements_that_keep_getting_lost_are_not_prepared_any_more(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    """The test at connection time does not detect such a pooler. A trigger simulates it: it fails
    in a session with a prepared statement.
    """
    caplog.set_level(logging.INFO, "sluicegate.postgres")
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(LOSES.format(db.table))
        async with db.sink(**options) as sink:
            for start in range(0, 600, 200):
                assert await written(sink, rows(start, 60)) == {}
        assert len(await db.rows()) == 180
        (line,) = caplog.messages
        assert "a prepared statement was lost" in line
        async with db.sink(prepared_statements=True, **options) as sink:
            assert "prepared_statements=" in whole(await written(sink, rows(1000)), 20).repair


# -- a DSN that leads elsewhere --------------------------------------------------------------------


@asynccontextmanager
async def relay(ports: Iterator[int]) -> AsyncGenerator[int]:
    """A port that forwards each new connection to the next of these ports."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", next(ports))
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_an_open_sink_notices_that_its_address_leads_to_a_pooler_now(
    embedded_postgres: EmbeddedPostgres,
    bouncer: PgBouncer,
    real_clock: LoopClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.postgres")

    def ports() -> Iterator[int]:
        yield embedded_postgres.port
        while True:
            yield bouncer.port

    async with database(embedded_postgres.dsn) as db, relay(ports()) as port:
        dsn = embedded_postgres.dsn.replace(str(embedded_postgres.port), str(port))
        async with db.sink(dsn=dsn) as sink:
            assert await written(sink, rows(0)) == {}
            assert caplog.messages == []
            await db.con.fetch(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type "
                "= 'client backend' AND pid <> pg_backend_pid()"
            )
            while errors := await written(sink, rows(400)):  # the end of the session is unread
                assert sink.classify(only(errors)) in {*AWAY, ErrorClass.UNKNOWN}
            for start in (100, 200, 300):
                assert await written(sink, rows(start)) == {}
        assert len(await db.rows()) == 100
    (line,) = caplog.messages
    assert f"127.0.0.1:{port}/postgres" in line
    assert "prepared_statements=" in line
