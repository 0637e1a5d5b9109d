"""Destinations whose connections go silent: a firewall has dropped its state, or the host has
vanished, so the connections stay open and their bytes are lost. Judged by the destination's content.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from tests.sinks.test_down_behind_a_proxy import (
    HOST,
    Case,
    clickhouse,
    elasticsearch,
    http,
    kafka,
    nats,
    objects,
    redis_stream,
    servers,
)
from tests.sql.conftest import mariadb
from tests.sql.sql_help import SqlTable

from sluicegate import Backoff, Batcher, Limits, Observer, Retry, RowBatch, Timeout, send, stack
from sluicegate.sql import SqlSink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

__all__ = ["mariadb", "servers"]

WRITE_WITHIN = 0.2
CLOSE_WITHIN = 0.3
_NUMBERS = itertools.count()


class BlackHole:
    """A proxy whose connections can go silent: they stay open, and forward nothing more."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._passing: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.swallows_new = False
        """Whether new connections are accepted, and silent from the beginning."""
        self.port = 0

    def swallow(self) -> int:
        """Make the existing connections silent for ever; return their number."""
        silenced, self._passing = self._passing, []
        for passing in silenced:
            passing.clear()
        return len(silenced)

    async def accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        passing = asyncio.Event()
        far_reader, far = await asyncio.open_connection(HOST, self._upstream)
        if not self.swallows_new:
            passing.set()
            self._passing.append(passing)

        async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                await passing.wait()
                to.write(self._renamed(data) if to is client else data)
                await to.drain()
            await passing.wait()

        pumps = [
            asyncio.ensure_future(pump(reader, far)),
            asyncio.ensure_future(pump(far_reader, client)),
        ]
        with contextlib.suppress(asyncio.CancelledError):  # asyncio would log it
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for writer in (client, far):
            writer.transport.abort()
        if passing in self._passing:
            self._passing.remove(passing)

    def _renamed(self, data: bytes) -> bytes:
        """The data with the address of a Kafka broker replaced by the proxy's."""
        theirs, ours = (HOST.encode() + port.to_bytes(4) for port in (self._upstream, self.port))
        return data.replace(theirs, ours)

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def black_hole(upstream: int) -> AsyncGenerator[BlackHole]:
    """A proxy in front of a port."""
    hole = BlackHole(upstream)
    server = await asyncio.start_server(hole.accept, HOST, 0)
    hole.port = server.sockets[0].getsockname()[1]
    try:
        yield hole
    finally:
        server.close()
        await hole.close()


@asynccontextmanager
async def _sql(request: pytest.FixtureRequest, driver: str) -> AsyncGenerator[Case]:
    server = request.getfixturevalue("mariadb")
    url, look = [sa.make_url(server.url(each)) for each in (driver, "pymysql")]
    name = f"silent_{next(_NUMBERS)}"
    table = SqlTable(
        url.render_as_string(hide_password=False), look.render_as_string(hide_password=False)
    )
    await asyncio.to_thread(table.run, f"CREATE TABLE {name} (id INT PRIMARY KEY, pad VARCHAR(99))")

    def read() -> list[int]:
        with table.engine.connect() as con:
            return [row[0] for row in con.exec_driver_sql(f"SELECT id FROM {name}")]

    def sink(port: int) -> Any:
        there = url.set(host=HOST, port=port, query={}).render_as_string(hide_password=False)
        return SqlSink(
            there,
            table=name,
            columns=("id", "pad"),
            row=lambda item: (item["id"], item["pad"]),
            on_conflict="ignore",
            pool_size=2,
            close_timeout=CLOSE_WITHIN,
        )

    yield Case(url.port or 3306, sink, lambda: asyncio.to_thread(read))


def sql_pymysql(request: pytest.FixtureRequest) -> Any:
    return _sql(request, "pymysql")


CASES = [
    clickhouse,
    elasticsearch,
    http,
    kafka,
    nats,
    objects,
    redis_stream,
    sql_pymysql,
]
THREADS = {sql_pymysql}


class Told(Observer):
    """The errors of the tries."""

    def __init__(self) -> None:
        self.classes: set[str] = set()

    def on_retry(self, batch: Batch[Any], error_class: str, items: int, delay: float) -> None:
        self.classes.add(error_class)


def _forms(*quick: Any) -> pytest.MarkDecorator:
    """All destinations; those besides `quick` with the long tests."""
    forms = [
        pytest.param(each, marks=[] if each in quick else [pytest.mark.long], id=each.__name__)
        for each in CASES
    ]
    return pytest.mark.parametrize("case_of", forms)


def _items(first: int, last: int, size: int = 1) -> list[dict[str, Any]]:
    return [{"id": number, "pad": "x" * size} for number in range(first, last)]


@_forms(http, sql_pymysql)
async def test_a_sink_continues_on_new_connections_and_ends_within_its_bound(
    request: pytest.FixtureRequest, real_clock: LoopClock, case_of: Any
) -> None:
    """Connections that go silent, more often than there are connections and threads; then new
    connections, too, while the batcher shuts down. No thread stays behind.
    """
    told, before = Told(), {*threading.enumerate()}
    async with AsyncExitStack() as opened:
        case: Case = await opened.enter_async_context(case_of(request))
        hole = await opened.enter_async_context(black_hole(case.port))
        retry = Retry(attempts=2, backoff=Backoff(base=0.01, longest=0.02))
        sink = stack(case.sink(hole.port), Timeout(WRITE_WITHIN), retry)
        limits = Limits(max_items=5, max_delay=0.01, workers=1)
        async with Batcher(sink, limits=limits, observers=[told]) as batcher:
            await batcher.add_many(_items(0, 5))
            await batcher.flush()
            silenced = 0
            for first in (5, 10, 15):
                silenced += hole.swallow()
                await batcher.add_many(_items(first, first + 5))
                assert (await batcher.flush(timeout=10.0)).complete, batcher.stats()
            await batcher.add_many(_items(20, 25))
            assert (await batcher.flush(timeout=10.0)).complete, batcher.stats()
            # the client of objects may leave an idle connection
            assert told.classes or not silenced or case_of in {*THREADS, objects}
            hole.swallows_new = True
            hole.swallow()
            await batcher.add_many(_items(25, 30))
            began = real_clock.now()
            report = await batcher.shutdown(1.0)
            assert real_clock.now() - began < 1.3
        found = {*await case.ids()}
        assert found >= {*range(5), *range(20, 25)}
        if case_of not in THREADS:  # a thread cannot be stopped, so its outcome stays unknown
            assert report.tally.delivered == 25
            assert found >= {*range(25)}
        await asyncio.to_thread(join, before, 2.0)


@_forms(http, sql_pymysql)
@pytest.mark.parametrize("state", ["idle", "writing", pytest.param("full", marks=pytest.mark.long)])
async def test_cancelling_a_write_and_closing_are_bounded(
    request: pytest.FixtureRequest, real_clock: LoopClock, case_of: Any, state: str
) -> None:
    """With an idle silent connection; with one that has a write; and with one that takes no more
    bytes of it.
    """
    is_sql = "sql" in case_of.__name__
    if is_sql and state == "full":
        pytest.skip("its column is short")
    before = {*threading.enumerate()}
    async with AsyncExitStack() as opened:
        case: Case = await opened.enter_async_context(case_of(request))
        hole = await opened.enter_async_context(black_hole(case.port))
        sink = case.sink(hole.port)
        await sink.__aenter__()
        assert await send(sink, RowBatch(_items(0, 5))) == {}
        hole.swallow()
        hole.swallows_new = True
        bound = CLOSE_WITHIN if is_sql else 5.0
        if state != "idle":
            items = _items(5, 10) if state == "writing" else _items(5, 35, 500_000)
            writing = asyncio.ensure_future(send(sink, RowBatch(items)))
            await asyncio.wait([writing], timeout=0.1 if state == "writing" else 1.0)
            assert not writing.done()
            began = real_clock.now()
            writing.cancel()
            await asyncio.wait([writing])
            assert real_clock.now() - began < bound + 0.3
        began = real_clock.now()
        await sink.__aexit__(None, None, None)
        assert real_clock.now() - began < bound + 0.3
        await asyncio.to_thread(join, before, 2.0)


def join(before: set[threading.Thread], within: float) -> None:
    """Assert that all other threads of connections have ended, so that a process could end."""
    for thread in {*threading.enumerate()} - before:
        if thread.name.startswith("sluicegate"):
            thread.join(within)
            assert not thread.is_alive(), thread
