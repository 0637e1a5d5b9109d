"""Helpers for the tests of `PostgresSink`: a table per test, and a proxy that cuts a connection at
a chosen word.

White box: a column of a table, as values are encoded for it; sinks with a forced statement.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
from benchmarks.postgres.forced import forced
from tests.postgres.access_help import access_from

from sluicegate import RefusedError, RowBatch, send
from sluicegate.postgres import PostgresAccess, PostgresSink
from sluicegate.postgres.sink.table import TableColumn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from sluicegate import Outcome

_NUMBERS = itertools.count()


class Database:
    """A test's own table, and a connection besides the sink's."""

    def __init__(self, dsn: str, table: str, con: Any) -> None:
        self.dsn = dsn
        self.table = table
        self.con = con

    def sink(
        self,
        columns: Sequence[str] | Mapping[str, str] = ("id", "word"),
        *,
        dsn: str | PostgresAccess | None = None,
        statement: str = "auto",
        **options: Any,
    ) -> PostgresSink:
        given = access_from(dsn or self.dsn, options)
        sink = PostgresSink(given, table=self.table, columns=columns, **options)
        return forced(sink, statement)

    async def rows(self, order: str = "1, 2") -> list[tuple[Any, ...]]:
        return [
            tuple(row)
            for row in await self.con.fetch(f"SELECT * FROM {self.table} ORDER BY {order}")
        ]


@asynccontextmanager
async def database(
    dsn: str, columns: str = "id int PRIMARY KEY, word text"
) -> AsyncGenerator[Database]:
    con = await asyncpg.connect(dsn)
    table = f"events_{next(_NUMBERS)}"
    try:
        await con.execute(f"DROP TABLE IF EXISTS {table} CASCADE; CREATE TABLE {table} ({columns})")
        yield Database(dsn, table, con)
        if not con.is_closed():
            await con.execute(f"SET lock_timeout = '5s'; DROP TABLE IF EXISTS {table} CASCADE")
    finally:
        await con.close()


class Role:
    """A role that may write to a test's table, and operator actions on it. Dropped with `role`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.name = f"{db.table}_writer"
        self.dsn = db.dsn.replace(
            db.dsn.partition("//")[2].partition("@")[0], f"{self.name}:secret"
        )

    async def grant(self, rights: str = "INSERT, SELECT, UPDATE") -> None:
        await self._db.con.execute(f"GRANT {rights} ON {self._db.table} TO {self.name}")

    async def end_sessions(self) -> None:
        """End its sessions, and return when they have ended."""
        await self._db.con.fetch(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1",
            self.name,
        )


@asynccontextmanager
async def role(db: Database) -> AsyncGenerator[Role]:
    made = Role(db)
    await db.con.execute(f"CREATE ROLE {made.name} LOGIN PASSWORD 'secret'")
    try:
        await made.grant()
        yield made
    finally:
        await made.end_sessions()
        await db.con.execute(f"DROP OWNED BY {made.name}; DROP ROLE {made.name}")


def column_of(kind: str, name: str = "word") -> TableColumn:
    """A column of a table, by its type."""
    return TableColumn(
        name,
        kind,
        kind,
        kind,
        0,
        is_read=False,
        is_enum=False,
        is_nested=False,
        not_null=True,
        generated=False,
        mark="",
    )


def batch_of(items: Iterable[Any], maybe: Iterable[int] = ()) -> RowBatch[Any]:
    """A batch outside a batcher; `maybe` are the items whose earlier attempt has an unknown
    outcome.
    """
    batch = RowBatch(items)
    batch.delivery.doubt(maybe)
    return batch


async def written(
    sink: PostgresSink, items: Iterable[Any], maybe: Iterable[int] = ()
) -> dict[int, BaseException]:
    return await send(sink, batch_of(items, maybe))


def whole(errors: Mapping[int, BaseException], size: int) -> RefusedError:
    """The single error of a write that was refused as a whole."""
    assert len(errors) == size
    assert len({id(error) for error in errors.values()}) == 1
    error = errors[0]
    assert isinstance(error, RefusedError), repr(error)
    assert isinstance(error.__cause__, asyncpg.PostgresError)
    return error


def outcomes(batch: RowBatch[Any]) -> list[Outcome]:
    return [batch.delivery.verdict(index) for index in range(len(batch))]


class Proxy:
    """A proxy between a client and PostgreSQL that counts the client's statements and cuts
    connections on request.

    `cut_answer` is the beginning of a command tag (`COMMIT`, `COPY`): the first response with it is
    not forwarded, and both sides are cut. `cut_request` decides on the client's messages by their
    type and body, before the server sees them.
    """

    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.statements: list[str] = []
        self.cut_answer: str | None = None
        self.cut_request: Callable[[bytes, bytes], bool] | None = None
        self.cuts = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        both = (writer, up_writer)
        self._writers.extend(both)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, up_writer, both))
                group.create_task(self._answers(up_reader, writer, both))
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for each in both:
                each.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        both: Iterable[asyncio.StreamWriter],
    ) -> None:
        size = await reader.readexactly(4)
        to.write(size + await reader.readexactly(int.from_bytes(size) - 4))
        last = ""
        prepared: dict[bytes, str] = {}
        while True:
            kind, body, raw = await _message(reader)
            if kind == b"P":
                name, query, *_ = body.split(b"\0")
                prepared[name] = query.decode()
            if kind == b"B":
                last = prepared[body.split(b"\0")[1]]
            if kind == b"Q":
                text = body.rstrip(b"\0").decode()
                self.statements.extend(
                    [text] if text.startswith("DO") else (part.strip() for part in text.split(";"))
                )
            if kind == b"E":
                self.statements.append(last)
            if self.cut_request is not None and self.cut_request(kind, body):
                self.cut_request = None
                self._cut(both)
                return
            to.write(raw)
            await to.drain()

    async def _answers(
        self,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        both: Iterable[asyncio.StreamWriter],
    ) -> None:
        while True:
            kind, body, raw = await _message(reader)
            if (
                kind == b"C"
                and self.cut_answer is not None
                and body.startswith(self.cut_answer.encode())
            ):
                self.cut_answer = None
                self._cut(both)
                return
            to.write(raw)
            await to.drain()

    def _cut(self, both: Iterable[asyncio.StreamWriter]) -> None:
        self.cuts += 1
        for each in both:
            each.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.serve(reader, writer)
        finally:
            self._tasks.discard(task)

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes, bytes]:
    head = await reader.readexactly(5)
    body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
    return head[:1], body, head + body


@asynccontextmanager
async def proxied(dsn: str) -> AsyncGenerator[tuple[Proxy, str]]:
    """A proxy in front of the server, and its DSN."""
    parts = urlsplit(dsn)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    async with server:
        proxy.port = server.sockets[0].getsockname()[1]
        through = f"{parts.netloc.rpartition(':')[0]}:{proxy.port}"
        yield proxy, parts._replace(netloc=through, query="sslmode=disable").geturl()
        server.close()
        await proxy.close()


async def until_blocked(con: Any, table: str, *, is_blocked: bool = True) -> None:
    """Return when another session waits for a lock on the table, or when none does any more."""
    waiting = (
        "SELECT count(*) > 0 FROM pg_locks WHERE relation = $1::text::regclass AND NOT granted"
    )
    while await con.fetchval(waiting, table) is not is_blocked:
        pass
