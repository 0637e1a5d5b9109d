"""`SqlSink` behind a proxy that accepts connections and closes them: the phase of an error decides
its class, whatever the driver raises.

Judged by the rows that the database has, read without the proxy. Proven here: batcher/B38.

White box: errors are judged by the class that a retry would see.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from tests.sql.conftest import table_of

from sluicegate import (
    Backoff,
    Batcher,
    ConfigError,
    ErrorClass,
    Limits,
    Retry,
    RowBatch,
    send,
    stack,
)
from sluicegate._core.classify import classified
from sluicegate.sql.dialects import MySql, SqlLimits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.sql.sql_help import SqlTable

pytestmark = pytest.mark.usefixtures("real_clock")

SERVERS = ["pymysql"]
PHASES = {
    rb"(?<!AUTO)COMMIT": "a COMMIT",
    rb"INSERT": "a statement",
    rb"BEGIN": "no statement",
}
"""The phase of a connection that is lost after the client has sent a word; the last one decides."""


class ClosingProxy:
    """A proxy of one server that closes connections: all of them at once, or each one after a
    number of bytes from the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.after: int | None = None
        """Bytes from the server after which a connection is closed; 0: when it is accepted."""
        self.resets = False
        """Whether connections are closed by RST instead of FIN."""
        self.closed = 0
        self.sent = 0
        """Bytes that the server has sent on the last connection."""
        self.phase = "no statement"
        """The phase of the last loss, by the words that the client had sent."""
        self.enough = asyncio.Event()
        """Set when as many connections were closed as `wanted`."""
        self.wanted = 1 << 30

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sent, self.phase = 0, "no statement"
        if self.after == 0:
            self._end(writer)
            return
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        both = {writer, up_writer}
        self._writers |= both
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, up_writer, both))
                group.create_task(self._answers(up_reader, writer, both))
        except* ConnectionError:
            pass
        finally:
            self._writers -= both
            for each in both:
                each.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        both: set[asyncio.StreamWriter],
    ) -> None:
        while data := await reader.read(65536):
            for word, kind in PHASES.items():
                if re.search(word, data):
                    self.phase = kind
                    break
            to.write(data)
            await to.drain()
        for each in both:
            each.close()

    async def _answers(
        self,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        both: set[asyncio.StreamWriter],
    ) -> None:
        while data := await reader.read(65536):
            if self.after is not None and self.sent + len(data) >= self.after:
                to.write(data[: self.after - self.sent])
                for each in both:
                    self._end(each)
                return
            self.sent += len(data)
            to.write(data)
            await to.drain()
        for each in both:
            each.close()

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self.closed += 1
        if self.closed >= self.wanted:
            self.enough.set()
        if self.resets:
            writer.transport.abort()
        else:
            writer.close()

    async def cut(self) -> None:
        """Close all connections."""
        writers = [*self._writers]
        for each in writers:
            each.transport.abort()
        await asyncio.gather(*[each.wait_closed() for each in writers], return_exceptions=True)

    async def close(self) -> None:
        await self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(table: SqlTable) -> AsyncGenerator[tuple[ClosingProxy, str]]:
    """A proxy in front of the table's server, and the URL through it."""
    url = sa.make_url(table.url)
    proxy = ClosingProxy(url.host or "127.0.0.1", url.port or 0)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    through = url.set(host="127.0.0.1", port=proxy.port, query={})
    try:
        yield proxy, through.render_as_string(hide_password=False)
    finally:
        server.close()
        await proxy.close()


@pytest.fixture(params=SERVERS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTable:
    """A table without a key, in which a row that is stored twice would show."""
    made = table_of(request, request.param, tmp_path)
    made.make("id INT NOT NULL, word VARCHAR(20) NOT NULL")
    return made


def _table_of(sink: Any) -> Any:
    return sink._table


def kinds(sink: Any, errors: dict[int, BaseException]) -> set[ErrorClass]:
    return {classified(error, sink.classify) for error in errors.values()}


async def rows_of(table: SqlTable) -> list[int]:
    return sorted([number for (number,) in await table.looked("id")])


async def test_an_outage_behind_a_proxy_uses_no_attempt(table: SqlTable) -> None:
    """Closed by FIN and by RST, far more often than there are attempts; each row is stored once."""
    retry = Retry(attempts=2, backoff=Backoff(base=0.001, longest=0.002, jitter="none"))
    limits = Limits(max_items=5, max_delay=0.01, workers=2, max_pending_items=100)
    async with proxied(table) as (proxy, url):
        async with Batcher(stack(table.sink(url=url), retry), limits=limits) as batcher:
            await batcher.add_many([(number, "w") for number in range(10)])
            await batcher.flush()
            for proxy.resets, first in ((False, 10), (True, 20)):
                proxy.after, proxy.wanted = 0, proxy.closed + 8
                proxy.enough.clear()
                await proxy.cut()
                await batcher.add_many([(number, "w") for number in range(first, first + 10)])
                await proxy.enough.wait()
                assert batcher.tally().inside == 10
                proxy.after = None
                await batcher.flush()
        assert batcher.tally().delivered == 30
    assert await rows_of(table) == [*range(30)]


@pytest.mark.parametrize("is_transaction", [False, True], ids=["a statement", "a transaction"])
async def test_the_phase_of_a_lost_connection_decides(
    table: SqlTable, monkeypatch: pytest.MonkeyPatch, is_transaction: bool
) -> None:
    """After any number of bytes from the server: while connecting, logging in, setting up the
    session or beginning, in the middle of an answer, and at the COMMIT.
    """
    if is_transaction:  # of two statements
        monkeypatch.setattr(MySql, "limits", lambda *_: SqlLimits(2, None))
    rows = [(1, "a"), (2, "b")]
    unknown = "a COMMIT" if is_transaction else "a statement"
    found: set[str] = set()
    async with proxied(table) as (proxy, url):
        async with table.sink(url=url, pool_size=1) as sink:
            proxy.after = 1
            await proxy.cut()
            assert len(await send(sink, RowBatch(rows))) == 2
            proxy.after = None
            assert await send(sink, RowBatch(rows)) == {}
            total, stored = proxy.sent, 2
            points = {
                1,
                2,
                5,
                *range(9, total, max(9, total // 6)),
                *range(total - 60, total, 15),
                total - 2,
            }
            for at, after in enumerate(sorted(points)):
                await proxy.cut()
                _table_of(sink)._read_at = float("-inf")  # it reads the table's columns, too
                proxy.after, proxy.resets = after, bool(at % 2)
                errors = await send(sink, RowBatch(rows))
                phase, before, stored = proxy.phase, stored, len(await rows_of(table))
                if not errors:  # lost between two statements, and replaced
                    assert stored == before + 2
                    continue
                is_unknown = phase == unknown
                kind = ErrorClass.UNKNOWN if is_unknown else ErrorClass.UNAVAILABLE
                assert len(errors) == 2
                # it may be lost behind the test of the pool, before the statement was sent
                allowed = {kind} if is_transaction else {kind, ErrorClass.UNKNOWN}
                assert kinds(sink, errors) <= allowed, (after, total, errors[0])
                found.add(phase)
                assert stored == before or (is_unknown and stored == before + 2), (
                    phase,
                    after,
                    total,
                    errors,
                )
            proxy.after = None
            assert await send(sink, RowBatch(rows)) == {}
        assert len(await rows_of(table)) == stored + 2
    assert found == {"no statement", "a statement"} | {unknown}


async def test_a_refused_login_stays_a_refusal(table: SqlTable) -> None:
    """When the sink is opened and, on a new connection, later; it is no outage."""
    url = sa.make_url(table.url)
    drop = "DROP USER IF EXISTS guest"
    table.run(drop)
    table.run("CREATE USER guest IDENTIFIED BY 'g'")
    table.run("GRANT SELECT, INSERT ON words TO guest")
    own = url.set(username="guest", password="g").render_as_string(hide_password=False)
    options = {"engine_options": {"pool_recycle": 0}}
    try:
        with pytest.raises(ConfigError, match="the database refuses"):
            wrong = url.set(username="nobody", password="g").render_as_string(hide_password=False)
            async with table.sink(url=wrong):
                pass
        async with table.sink(("id", "word"), url=own, **options) as sink:
            table.run("DROP USER guest")
            errors = await send(sink, RowBatch([(1, "w")]))
            assert kinds(sink, errors) == {ErrorClass.REFUSED}
    finally:
        table.run(drop)
