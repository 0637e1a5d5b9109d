"""Connections to PostgreSQL that become silent while new ones work, as after a firewall has lost its
state: each wait for an answer has a bound, and the work continues on new connections.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.streams.silent_proxy import silent_proxy

from penstock import Consumer, flow
from penstock.queues import QueueAdmin
from penstock.sinks import PostgresSink
from penstock.sources.postgres_queue import PostgresQueueSource
from penstock.sources.postgres_stream import PostgresStreamSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.streams.log_help import Log

    from penstock import LoopClock, Message

SOON = 0.25
"""The `answer_timeout` of these tests, in seconds."""
DRAIN = 0.3
COUNT = 5


class Handled:
    """The numbers of handled messages."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._more = asyncio.Condition()

    async def handle(self, message: Message) -> None:
        async with self._more:
            self.numbers.append(json.loads(message.value)["n"])
            self._more.notify_all()

    async def until(self, count: int) -> None:
        """Wait for this many different messages."""
        async with self._more:
            await self._more.wait_for(lambda: len({*self.numbers}) >= count)


async def _added(log: Log, kind: str, *numbers: int) -> None:
    async with log.connected() as con:
        if kind == "stream":
            await log.append(con, "s-1", *numbers)
            return
        for number in numbers:
            text = json.dumps({"n": number})
            query = f"INSERT INTO {log.sql}.job (queue, key, payload) VALUES ('q', 'k', $1)"
            await con.execute(query, text)


@asynccontextmanager
async def _source(kind: str, log: Log, dsn: str) -> AsyncIterator[Any]:
    options: dict[str, Any] = {"schema": log.schema, "poll": 0.02, "answer_timeout": SOON}
    if kind == "stream":
        yield PostgresStreamSource(dsn, subscription="s", **options)
        return
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("q")
    yield PostgresQueueSource(dsn, queue="q", **options)


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_source_continues_on_new_connections_and_closes_in_time(
    log: Log, real_clock: LoopClock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O-T10, B-T49: the outage is reported, and a drain ends within its time and one second."""
    handled = Handled()
    async with silent_proxy(log.dsn) as proxy, _source(kind, log, proxy.dsn) as source:
        consumer = Consumer(source, name="c", drain=DRAIN, commit_every=0.02)
        async with consumer:
            run = asyncio.create_task(consumer.run(handled.handle))
            await _added(log, kind, *range(COUNT))
            await handled.until(COUNT)
            assert proxy.silence() > 1
            await _added(log, kind, *range(COUNT, 2 * COUNT))
            async with asyncio.timeout(10):
                await handled.until(2 * COUNT)
            await consumer.wait_ready()
            proxy.silence()
            began = real_clock.now()
            consumer.stop()
            await run
        assert real_clock.now() - began < DRAIN + 1 + 0.3
    assert "no answer from" in caplog.text


@pytest.mark.long
async def test_a_transaction_continues_on_a_new_connection(log: Log, real_clock: LoopClock) -> None:
    """The rows of the table are each there once."""
    async with (
        silent_proxy(log.dsn) as proxy,
        log.connected() as con,
        _source("stream", log, log.dsn) as source,
    ):
        table = f"{log.schema}_rows"
        await con.execute(f'CREATE TABLE "{table}" (n int)')
        try:
            sink = PostgresSink(
                proxy.dsn, table=table, columns=["n"], answer_timeout=SOON, close_timeout=SOON
            )
            pipe = flow.transaction(
                source, sink, lambda m: [(json.loads(m.value)["n"],)], drain=DRAIN
            )
            run = asyncio.create_task(pipe.run())
            query = f'SELECT count(*), count(DISTINCT n) FROM "{table}"'
            for at in (0, COUNT):
                await _added(log, "stream", *range(at, at + COUNT))
                async with asyncio.timeout(10):
                    while tuple(await con.fetchrow(query)) != (
                        at + COUNT,
                        at + COUNT,
                    ):  # judged by the table
                        await real_clock.sleep(0.02)
                proxy.silence()
            began = real_clock.now()
            pipe.stop()
            await run
            assert real_clock.now() - began < DRAIN + 1 + 0.3
        finally:
            await con.execute(f'DROP TABLE "{table}"')
