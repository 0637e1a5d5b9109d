"""A server that is replaced by one with a shorter log, which grows again: the same server, restarted,
after the last messages were removed by hand.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.log_help import Log, fresh_name, install_log
from tests.postgres.streams.source.stream_help import WITHIN, claim_on, positions, source_of

from sluicegate.consumer import Position
from sluicegate.testing import embedded_postgres as own_server
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


@pytest.fixture(scope="module")
def server(embedded_postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    with own_server({"fsync": "off"}) as own:
        yield own


async def a_log(server: EmbeddedPostgres) -> Log:
    log = Log(server.dsn, fresh_name())
    await install_log(log)
    return log


async def shorten(log: Log, con: Any, last: int) -> None:
    """Remove the messages after a position, which is assigned again."""
    await con.execute(f"DELETE FROM {log.sql}.message WHERE position > {last}")
    await con.execute(f"SELECT setval('{log.sql}.position', {last})")


@pytest.mark.parametrize("commits", [False, True], ids=["fetch", "commit"])
async def test_a_log_that_was_shortened_and_has_grown_again_is_read_from_the_stored_positions(
    server: EmbeddedPostgres,
    real_clock: LoopClock,
    caplog: pytest.LogCaptureFixture,
    commits: bool,
) -> None:
    """Otherwise the messages at the positions that were read are skipped."""
    log, host = await a_log(server), RecordingHost()
    reader = source_of(log)
    async with asyncio.timeout(WITHIN), reader.open(host):
        async with log.connected() as con:
            await log.append(con, "s-1", 1, 2, 3)
        assert await positions(reader, host) == [1, 2, 3]
        claim = claim_on(host, "s-1")
        assert await reader.commit({claim: Position(2)}) == [claim]
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with log.connected() as con:
            await shorten(log, con, 1)
            assert await log.append(con, "s-1", 4, 5) == [2, 3]
        if commits:
            assert await reader.commit({claim: Position(4)}) == []
        assert await positions(reader, host) == [2, 3]
        assert await reader.commit({claim: Position(4)}) == []
    assert "the message at position 3, which was read, is not in the log" in caplog.text


async def test_messages_that_were_read_beyond_a_shorter_log_are_told(
    log: Log, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """On the same server, too, if the log is read while it is shorter."""
    host, reader = RecordingHost(), source_of(log)
    async with asyncio.timeout(WITHIN), log.connected() as con, reader.open(host):
        await log.append(con, "s-1", 1, 2, 3)
        assert await positions(reader, host) == [1, 2, 3]
        await shorten(log, con, 1)
        fetching = asyncio.ensure_future(reader.fetch(host.open, 10))
        await host.news.wait_for(lambda: not host.open)
        fetching.cancel()
        await log.append(con, "s-1", 4)
        assert await positions(reader, host) == [1, 2]
    assert "the message at position 3, which was read, is not in the log" in caplog.text


async def test_a_server_that_has_lost_nothing_ends_no_claim(
    server: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    log, host = await a_log(server), RecordingHost()
    reader = source_of(log)
    async with asyncio.timeout(WITHIN), reader.open(host):
        async with log.connected() as con:
            await log.append(con, "s-1", 1, 2)
        assert await positions(reader, host) == [1, 2]
        claims = host.open
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with log.connected() as con:
            (last,) = await log.append(con, "s-1", 3)
        assert await positions(reader, host) == [last]
        assert host.open == claims
