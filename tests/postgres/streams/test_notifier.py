"""Notifications: after commits, coalesced, and not required for correctness.

White box: the interval of notifications, and their channel.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from sluicegate import RowBatch, send
from sluicegate.postgres import NewMessage, PostgresStreamSink, StreamLog, StreamNotifier
from sluicegate.postgres.client.notifications import EVERY
from sluicegate.postgres.streams.log import channel_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import FakeClock


class Server:
    """Connections to a server that records notification requests or refuses them."""

    close_timeout = 5.0

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.is_away = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.statements: list[str] = []
        self.times: list[float] = []

    @asynccontextmanager
    async def lent(self, *, keep: bool, answered: bool) -> AsyncGenerator[Server]:
        assert keep
        assert answered
        if self.is_away:
            raise ConnectionRefusedError("away")
        yield self

    async def execute(self, statement: str) -> None:
        self.statements.append(statement)
        self.times.append(self._clock.now())
        await self.answers.wait()


def notifier(clock: FakeClock) -> tuple[StreamNotifier, Server]:
    server = Server(clock)
    return StreamNotifier(cast("Any", server), "mine", clock=clock), server


async def test_many_commits_are_one_notification_in_20_ms(fake_clock: FakeClock) -> None:
    """The first is sent at once, and later ones after the rest of the 20 ms."""
    told, server = notifier(fake_clock)
    began = fake_clock.now()
    for _ in range(100):
        for _ in range(5):
            told.appended()
        await fake_clock.advance(0.001)
    await fake_clock.advance(1.0)
    assert [round(when - began, 6) for when in server.times] == [
        pytest.approx(number * EVERY) for number in range(6)
    ]
    assert set(server.statements) == {"SELECT pg_catalog.pg_notify('sluicegate:mine', '')"}
    told.appended()
    await fake_clock.run_until_idle()
    assert len(server.times) == 7


async def test_closing_sends_what_is_due(fake_clock: FakeClock) -> None:
    told, server = notifier(fake_clock)
    told.appended()
    await fake_clock.run_until_idle()
    told.appended()
    await told.close()
    assert len(server.times) == 2
    await told.close()
    assert len(server.times) == 2


async def test_closing_leaves_nothing_due_behind_a_notification_without_an_answer(
    fake_clock: FakeClock,
) -> None:
    told, server = notifier(fake_clock)
    server.answers.clear()
    told.appended()
    await fake_clock.run_until_idle()
    told.appended()
    closing = asyncio.create_task(told.close())
    await fake_clock.run_until_idle()
    server.answers.set()
    await closing
    assert len(server.times) == 2
    await fake_clock.advance(1.0)
    assert len(server.times) == 2


async def test_a_failure_is_logged_once_and_the_next_commit_tries_again(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    told, server = notifier(fake_clock)
    server.is_away = True
    with caplog.at_level(logging.WARNING, "sluicegate.postgres"):
        for _ in range(3):
            told.appended()
            await fake_clock.advance(1.0)
    assert len(caplog.records) == 1
    assert "'mine' are not notified, and poll" in caplog.text
    server.is_away = False
    told.appended()
    await fake_clock.advance(1.0)
    assert len(server.times) == 1


async def test_closing_gives_a_silent_server_as_long_as_a_connection(fake_clock: FakeClock) -> None:
    told, server = notifier(fake_clock)
    server.answers.clear()
    told.appended()
    closing = asyncio.create_task(told.close())
    await fake_clock.advance(server.close_timeout - 0.1)
    assert not closing.done()
    await fake_clock.advance(0.1)
    assert closing.done()
    await closing


@asynccontextmanager
async def listening(log: Log) -> AsyncGenerator[asyncio.Queue[str]]:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with log.connected() as con:
        await con.add_listener(channel_of(log.schema), lambda *args: heard.put_nowait(args[2]))
        yield heard


async def test_a_listener_hears_of_the_users_own_transaction(
    log: Log, real_clock: LoopClock
) -> None:
    """S17: the call may come from another thread; by then the message is visible."""
    made = StreamLog(log.schema)
    async with listening(log) as heard, made.notifier(log.dsn) as told, log.connected() as con:
        async with con.transaction():
            await made.append(con, "order-1", NewMessage("Happened", 1))
        thread = threading.Thread(target=told.appended)
        thread.start()
        assert await heard.get() == channel_of(log.schema)
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.message") == 1
        thread.join()


async def test_a_listener_hears_of_a_sinks_write(log: Log, real_clock: LoopClock) -> None:
    async with (
        listening(log) as heard,
        PostgresStreamSink(
            log.dsn, schema=log.schema, stream=lambda n: f"order-{n}", type=lambda _: "Happened"
        ) as sink,
    ):
        assert await send(sink, RowBatch([1, 2])) == {}
        await heard.get()
