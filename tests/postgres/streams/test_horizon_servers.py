"""The horizon with prepared transactions, crashes, standbys and restored dumps."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.postgres.streams import horizon_help as planted
from tests.postgres.streams.horizon_help import Reader, faults, scene
from tests.postgres.streams.log_help import Log, fresh_name, install_log

from sluicegate.testing import embedded_postgres as start_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


@pytest.fixture(scope="module")
def server(embedded_postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A server for this file, with prepared transactions; tests may kill it."""
    with start_postgres({"max_prepared_transactions": "5"}) as own:
        yield own


async def a_log(dsn: str) -> Log:
    log = Log(dsn, fresh_name())
    await install_log(log)
    return log


@pytest.mark.parametrize("bug", faults(planted.HORIZON_OF_SESSIONS))
async def test_a_prepared_transaction_keeps_its_mark(
    server: EmbeddedPostgres, real_clock: LoopClock, bug: str | None
) -> None:
    """S18: it no longer belongs to a session."""
    async with scene(await a_log(server.dsn), bug) as here:
        await here.first.execute("BEGIN")
        await here.append(here.first)
        await here.first.execute("PREPARE TRANSACTION 'one'")
        await here.append(here.second)
        await here.reader.read()
        await here.first.execute("COMMIT PREPARED 'one'")
        assert bool(await here.lost()) == (bug is not None)


@pytest.mark.parametrize("end", ["COMMIT", pytest.param("ROLLBACK", marks=pytest.mark.long)])
async def test_a_prepared_transaction_keeps_its_mark_over_a_crash_of_the_server(
    server: EmbeddedPostgres, real_clock: LoopClock, end: str
) -> None:
    """S18: positions continue behind it."""
    log = await a_log(server.dsn)
    async with scene(log) as here:
        await here.first.execute("BEGIN")
        prepared = await here.append(here.first)
        await here.first.execute("PREPARE TRANSACTION 'two'")
        appended = await here.append(here.second)
        await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    async with log.connected() as con, log.connected() as writer:
        reader = Reader(con, log)
        appended += await log.append(writer, "s-1", 1)
        assert await reader.read() == 0
        await writer.execute(f"{end} PREPARED 'two'")
        await reader.read()
        assert reader.delivered == (prepared if end == "COMMIT" else []) + appended


async def test_positions_never_repeat_after_a_crash_of_the_server(
    server: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """S18: the open transaction is gone with its mark. A reader that has passed a position never
    finds another message there.
    """
    log = await a_log(server.dsn)
    async with scene(log) as here:
        await here.append(here.first)
        await here.first.execute("BEGIN")
        await here.append(here.first)
        appended = await here.append(here.second)
        await here.reader.read()
        position = here.reader.position
        await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    async with log.connected() as con, log.connected() as writer:
        reader = Reader(con, log, position)
        await reader.read()
        assert reader.delivered == appended
        assert min(await log.append(writer, "s-1", 1)) > max(appended)
        await reader.read()
        assert reader.delivered[:-1] == appended


async def test_the_horizon_is_refused_on_a_standby(real_clock: LoopClock) -> None:
    """S18: a standby has no marks: a message that commits late would be lost."""
    with start_postgres({"fsync": "off"}) as server:
        log = await a_log(server.dsn)
        async with log.connected() as con:
            await log.append(con, "s-1", 1)
        await asyncio.to_thread(server.stop)
        signal = server._data / "standby.signal"
        signal.touch()
        signal.chmod(0o666)
        await asyncio.to_thread(server.start)
        async with log.connected() as con:
            assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.message") == 1
            with pytest.raises(asyncpg.PostgresError, match="primary") as refused:
                await con.fetchval(f"SELECT {log.sql}.horizon()")
            assert refused.value.sqlstate == "PS004"


async def test_a_restored_dump_goes_on_where_the_log_ended(
    server: EmbeddedPostgres, real_clock: LoopClock, tmp_path: Path
) -> None:
    """S18: positions belong to the data, unlike transaction ids, which start again in another
    cluster. A reader continues at its position. The dump was taken while a transaction was open.
    """
    log = await a_log(server.dsn)
    copy = f"copy_of_{log.schema}"
    async with scene(log) as here:
        await here.append(here.second, count=3)
        await here.reader.read()
        await here.first.execute("BEGIN")
        await here.append(here.first)
        await here.append(here.second)
        await asyncio.to_thread(
            _client, server, "pg_dump", "-n", log.schema, "-f", str(tmp_path / "sql"), log.dsn
        )
        await here.operator.execute(f"CREATE DATABASE {copy}")
        position = here.reader.position
    restored = Log(urlunsplit(urlsplit(log.dsn)._replace(path=copy)), log.schema)
    await asyncio.to_thread(
        _client, server, "psql", "-v", "ON_ERROR_STOP=1", "-f", str(tmp_path / "sql"), restored.dsn
    )
    async with scene(restored) as here:
        here.reader.position = position
        appended = await here.append(here.first)
        await here.reader.read()
        assert here.reader.delivered == [5, *appended]
        assert appended == [6]


def _client(server: EmbeddedPostgres, program: str, *arguments: str) -> None:
    """Run a PostgreSQL client program, which must succeed."""
    command = [str(server._binaries / program), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
