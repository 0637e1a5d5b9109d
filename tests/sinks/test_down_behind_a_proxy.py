"""Destinations behind a proxy that refuses connections, or accepts and breaks them: at once, after
some bytes of requests, or in the middle of answers. Judged by the destination's own content.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.clickhouse.servers import EngineServer, running
from tests.http.test_elasticsearch import index
from tests.nats.sink.nats_help import new_stream
from tests.nats.sink.nats_help import read as read_nats
from tests.object_servers import SERVERS, object_server
from tests.postgres.streams.log_pool import log
from tests.redis_server import redis_server

from sluicegate import (
    Backoff,
    Batcher,
    DeadLetter,
    Limits,
    Observer,
    Outcome,
    Retry,
    Timeout,
    stack,
)
from sluicegate.clickhouse import ClickHouseSink
from sluicegate.http import ElasticsearchSink, HttpAccess, HttpSink
from sluicegate.kafka import KafkaSink
from sluicegate.nats import NatsSink
from sluicegate.objects import ObjectSink
from sluicegate.postgres import PostgresQueueSink, PostgresSink, PostgresStreamSink
from sluicegate.redis import RedisSink
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from tests.postgres.streams.log_help import Log

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

__all__ = ["log"]

HOST = "127.0.0.1"
TRIES = 8
"""Failed tries after which the proxy works again: four times the attempts of an item."""


@dataclass(frozen=True)
class Way:
    """How a proxy breaks connections."""

    at: Literal["connect", "request", "answer"]
    after: int = 0
    """Forwarded bytes of each connection, from the beginning of the outage."""
    by: Literal["fin", "rst", "refuse"] = "fin"

    def __str__(self) -> str:
        return f"{self.by} at {self.at}" + (f" after {self.after}" if self.after else "")


WAYS = [
    Way("connect", by="rst"),
    Way("request", 150, by="fin"),
    Way("answer", 20, by="rst"),
]
"""One for each place where a connection may break."""
MORE = [
    Way("connect", by="refuse"),
    *(
        way
        for by in ("fin", "rst")
        for way in (
            Way("connect", by=by),
            *(Way("request", n, by=by) for n in (1, 40, 150, 500, 2_000)),
            *(Way("answer", n, by=by) for n in (1, 20, 150, 500, 2_000)),
        )
        if way not in WAYS
    ),
]


class Proxy:
    """Forwards connections to a port, or breaks them in a `way`."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._way: Way | None = None
        self._left: dict[asyncio.StreamWriter, int] = {}
        """Bytes that each connection still forwards, by its client."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def break_by(self, way: Way) -> None:
        """Break connections from now on; `heal` ends it."""
        self._way = way
        self._left = dict.fromkeys(self._left, way.after)
        if way.at == "connect":
            for client in [*self._left]:
                _end(client, way)
        if way.by == "refuse" and self._server is not None:
            self._server.close()

    async def heal(self) -> None:
        way, self._way = self._way, None
        if way is not None and way.by == "refuse":
            await self.listen()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if self._way is not None and self._way.at == "connect":
                _end(client, self._way)
            else:
                await self._relay(reader, client)
        client.close()
        with contextlib.suppress(OSError):
            await client.wait_closed()
        self._tasks.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        up_reader, server = await asyncio.open_connection(HOST, self._upstream)
        self._left[client] = 0 if self._way is None else self._way.after
        pumps = [
            asyncio.ensure_future(self._pump("request", reader, server, client)),
            asyncio.ensure_future(self._pump("answer", up_reader, client, client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            del self._left[client]
            server.close()
            await asyncio.gather(*pumps, return_exceptions=True)
            with contextlib.suppress(OSError):
                await server.wait_closed()

    async def _pump(
        self,
        at: str,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        while data := await reader.read(1 << 16):
            way = self._way
            if way is None or way.at != at:
                to.write(self._renamed(data) if at == "answer" else data)
                await to.drain()
                continue
            data = data[: self._left[client]]
            self._left[client] -= len(data)
            to.write(self._renamed(data) if at == "answer" else data)
            await to.drain()
            if not self._left[client]:
                _end(client, way)
                return

    def _renamed(self, data: bytes) -> bytes:
        """The data with the address of a Kafka broker replaced by the proxy's."""
        theirs, ours = (HOST.encode() + port.to_bytes(4) for port in (self._upstream, self.port))
        return data.replace(theirs, ours)


def _end(client: asyncio.StreamWriter, way: Way) -> None:
    if way.by == "fin":
        client.close()
        return
    sock = client.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


class Heals(Observer):
    """Heals a proxy after some failed tries."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._left = TRIES
        self._healing: asyncio.Task[None] | None = None

    def on_retry(self, batch: Batch[Any], error_class: str, items: int, delay: float) -> None:
        self._left -= 1
        if not self._left:
            self._healing = asyncio.ensure_future(self._proxy.heal())


@dataclass
class Case:
    """A destination, and the sink that writes to it through a port."""

    port: int
    sink: Callable[[int], Any]
    ids: Callable[[], Awaitable[list[int]]]
    """The ids of its items."""
    is_harmless: bool = True
    """Whether a repetition stores nothing twice."""
    connects: bool = True
    """Whether it sends nothing of a write before the server has answered on the connection."""


_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Any]]:
    """The servers of this module that no fixture of the suite starts, by name."""
    with contextlib.ExitStack() as opened:
        kinds: dict[str, Any] = {"redis": redis_server, "clickhouse": _engine}

        kinds |= {name: partial(object_server, name) for name in SERVERS}

        class Servers(dict[str, Any]):
            def __missing__(self, name: str) -> Any:
                self[name] = opened.enter_context(there_or_skip(name, kinds[name]()))
                return self[name]

        yield Servers()


def _engine() -> Any:
    return running(EngineServer)


def _postgres(request: pytest.FixtureRequest) -> tuple[Any, Callable[[int], str]]:
    server = request.getfixturevalue("embedded_postgres")
    return server, lambda port: server.dsn.replace(f":{server.port}/", f":{port}/")


@asynccontextmanager
async def _rows(request: pytest.FixtureRequest, key: str, **options: Any) -> AsyncGenerator[Case]:
    server, dsn = _postgres(request)
    table = f"behind_{next(_NUMBERS)}"
    con = await asyncpg.connect(server.dsn)
    await con.execute(f"CREATE TABLE {table} (id int {key}, pad text)")

    async def ids() -> list[int]:
        return [row[0] for row in await con.fetch(f"SELECT id FROM {table}")]

    def sink(port: int) -> Any:
        return PostgresSink(dsn(port), table=table, columns=("id", "pad"), **options)

    try:
        # without a key, a pooled connection that ends unnoticed leaves one statement unknown
        yield Case(server.port, sink, ids, is_harmless=bool(key), connects=bool(key))
    finally:
        await con.close()


def postgres(request: pytest.FixtureRequest) -> Any:
    return _rows(request, "PRIMARY KEY")


def postgres_upsert(request: pytest.FixtureRequest) -> Any:
    return _rows(request, "PRIMARY KEY", on_conflict="update")


def postgres_copy(request: pytest.FixtureRequest) -> Any:
    return _rows(request, "PRIMARY KEY", copy_threshold=1)


def postgres_without_key(request: pytest.FixtureRequest) -> Any:
    return _rows(request, "")


def _log(request: pytest.FixtureRequest) -> tuple[Log, int, Callable[[int], str]]:
    """A schema of the test's own, the server's port, and its address through another port."""
    made: Log = request.getfixturevalue("log")
    port = urlsplit(made.dsn).port
    assert port is not None
    return made, port, lambda other: made.dsn.replace(f":{port}/", f":{other}/")


@asynccontextmanager
async def stream(request: pytest.FixtureRequest) -> AsyncGenerator[Case]:
    log, own, dsn = _log(request)

    async def ids() -> list[int]:
        async with log.connected() as con:
            rows = await con.fetch(f"SELECT data FROM {log.sql}.message")
        return [json.loads(row[0])["id"] for row in rows]

    def sink(port: int) -> Any:
        return PostgresStreamSink(dsn(port), schema=log.schema, stream=_name, type=_name, id=_uuid)

    yield Case(own, sink, ids)


@asynccontextmanager
async def queue(request: pytest.FixtureRequest) -> AsyncGenerator[Case]:
    log, own, dsn = _log(request)
    async with log.connected() as con:
        await con.execute(f"INSERT INTO {log.sql}.queue (name) VALUES ('jobs')")

    async def ids() -> list[int]:
        async with log.connected() as con:
            rows = await con.fetch(f"SELECT payload FROM {log.sql}.job")
        return [json.loads(row[0])["id"] for row in rows]

    def sink(port: int) -> Any:
        return PostgresQueueSink(dsn(port), schema=log.schema, queue="jobs", id=_uuid)

    yield Case(own, sink, ids)


def _uuid(item: Any) -> str:
    return f"00000000-0000-0000-0000-{item['id']:012}"


def _name(_: Any) -> str:
    return "events"


@asynccontextmanager
async def _http(*, header: str | None) -> AsyncGenerator[Case]:
    """A server that applies each idempotency key once."""
    stored: list[int] = []
    known: set[bytes] = set()
    tasks: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                names = {name.lower(): value for name, value in fields.items()}
                body = await reader.readexactly(int(names[b"content-length"]))
                key = names.get(b"idempotency-key")
                if key is None or key not in known:
                    stored.extend(json.loads(line)["id"] for line in body.splitlines())
                    known.update(() if key is None else (key,))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def ids() -> list[int]:
        return stored

    def sink(port: int) -> Any:
        return HttpSink(
            HttpAccess(f"http://{HOST}:{port}/", client_options={"verify": False}),
            idempotency_header=header,
        )

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Case(port, sink, ids, is_harmless=header is not None, connects=False)
    await asyncio.gather(*tasks)


def http(_: pytest.FixtureRequest) -> Any:
    return _http(header="Idempotency-Key")


def http_without_key(_: pytest.FixtureRequest) -> Any:
    return _http(header=None)


@asynccontextmanager
async def elasticsearch(request: pytest.FixtureRequest) -> AsyncGenerator[Case]:
    server = request.getfixturevalue("embedded_opensearch")
    async with index(server) as made:

        async def ids() -> list[int]:
            return [source["id"] for source in (await made.sources()).values()]

        def sink(port: int) -> Any:
            return ElasticsearchSink(
                HttpAccess(f"http://{HOST}:{port}", client_options={"verify": False}),
                index=made.name,
            )

        yield Case(int(server.url.rpartition(":")[2]), sink, ids, connects=False)


@asynccontextmanager
async def clickhouse(request: pytest.FixtureRequest) -> AsyncGenerator[Case]:
    server = request.getfixturevalue("servers")["clickhouse"]
    table = f"behind_{next(_NUMBERS)}"
    await asyncio.to_thread(
        server.run,
        f"CREATE TABLE {table} (id Int64, pad String) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 1000",
    )

    async def ids() -> list[int]:
        rows = await asyncio.to_thread(server.rows, f"SELECT id FROM {table}")
        return [int(row[0]) for row in rows]

    def sink(port: int) -> Any:
        return ClickHouseSink(
            HttpAccess(f"http://{HOST}:{port}", client_options={"verify": False}), table=table
        )

    yield Case(server.port, sink, ids, connects=False)


@asynccontextmanager
async def _objects(request: pytest.FixtureRequest, kind: str) -> AsyncGenerator[Case]:
    server = request.getfixturevalue("servers")[kind]
    name = f"behind-{next(_NUMBERS)}"
    await asyncio.to_thread(server.bucket, name)

    async def ids() -> list[int]:
        found = await asyncio.to_thread(server.contents, name)
        return [json.loads(line)["id"] for each in found.values() for line in each.splitlines()]

    def sink(port: int) -> Any:
        config = server.config(f"http://{HOST}:{port}")
        return ObjectSink(f"{server.place(name)}/f", config=config, timeout=5.0)

    yield Case(server.port, sink, ids, connects=False)


def objects(request: pytest.FixtureRequest) -> Any:
    return _objects(request, "s3")


def objects_in_azurite(request: pytest.FixtureRequest) -> Any:
    return _objects(request, "azurite")


def objects_in_minio(request: pytest.FixtureRequest) -> Any:
    return _objects(request, "minio")


@asynccontextmanager
async def _redis(
    request: pytest.FixtureRequest, *, is_harmless: bool, **options: Any
) -> AsyncGenerator[Case]:
    import redis.asyncio as client_of

    server = request.getfixturevalue("servers")["redis"]
    name = f"behind-{next(_NUMBERS)}"
    client = client_of.Redis.from_url(server.url)

    async def ids() -> list[int]:
        entries: Any = await client.xrange(name)
        return [int(fields[b"id"]) for _, fields in entries]

    def sink(port: int) -> Any:
        return RedisSink(f"redis://{HOST}:{port}", stream=name, **options)

    async with client:
        yield Case(server.port, sink, ids, is_harmless=is_harmless)


def redis_stream(request: pytest.FixtureRequest) -> Any:
    return _redis(request, is_harmless=True, id=lambda item: f"{item['id'] + 1}-0")


def redis_without_ids(request: pytest.FixtureRequest) -> Any:
    return _redis(request, is_harmless=False)


@asynccontextmanager
async def nats(request: pytest.FixtureRequest) -> AsyncGenerator[Case]:
    server = request.getfixturevalue("embedded_nats")
    name = await new_stream(server)

    async def ids() -> list[int]:
        return [message.item["id"] for message in await read_nats(server, name)]

    def sink(port: int) -> Any:
        servers = f"nats://{HOST}:{port}"
        return NatsSink(f"{name}.x", servers=servers, reconnect_time_wait=0.01, ping_interval=0.5)

    yield Case(int(server.url.rpartition(":")[2]), sink, ids)


@asynccontextmanager
async def kafka(request: pytest.FixtureRequest) -> AsyncGenerator[Case]:
    from tests.kafka.sink.sink_help import read
    from tests.kafka.source.kafka_help import new_topic

    broker = request.getfixturevalue("broker")
    topic = await new_topic(broker, 2)

    async def ids() -> list[int]:
        return [record.item["id"] for record in await read(broker, topic)]

    def sink(port: int) -> Any:
        return KafkaSink(topic, bootstrap=f"{HOST}:{port}")

    yield Case(int(broker.bootstrap.rpartition(":")[2]), sink, ids)


CASES = [
    postgres,
    postgres_upsert,
    postgres_copy,
    postgres_without_key,
    stream,
    queue,
    http,
    http_without_key,
    elasticsearch,
    clickhouse,
    objects,
    objects_in_azurite,
    objects_in_minio,
    redis_stream,
    redis_without_ids,
    nats,
    kafka,
]


IN_EVERY_WAY = [postgres, http, nats]
"""A session, requests, and acknowledgements of single messages: the others break in one way."""
WITH_LONG = [elasticsearch, kafka]
"""Their servers take long to start, and their own folders have outages in the suite."""


def _marks(case: Any, way: Way) -> Any:
    if way in MORE:
        return pytest.mark.long if way in MORE[::3] else pytest.mark.soak
    is_quick = case in IN_EVERY_WAY or (way == WAYS[1] and case not in WITH_LONG)
    return () if is_quick else pytest.mark.long


@pytest.fixture
def case_of(request: pytest.FixtureRequest, case: Any) -> Any:
    if case in {stream, queue}:
        request.getfixturevalue("log")  # which needs a loop of its own
    return case


@pytest.mark.parametrize(
    ("case", "way"),
    [
        pytest.param(case, way, marks=_marks(case, way), id=f"{case.__name__}-{way}")
        for case in CASES
        for way in (*WAYS, *MORE)
    ],
)
async def test_a_destination_down_behind_a_proxy_loses_no_good_item(
    request: pytest.FixtureRequest, real_clock: LoopClock, case_of: Any, way: Way
) -> None:
    """No item is dead-lettered. None is unknown where a
    repetition is harmless, or nothing was sent.
    """
    dead: list[Any] = []

    async def bury(batch: Batch[Any]) -> None:
        dead.extend(batch)

    async with AsyncExitStack() as opened:
        case: Case = await opened.enter_async_context(case_of(request))
        proxy = Proxy(case.port)
        await proxy.listen()
        opened.push_async_callback(proxy.close)
        retry = Retry(attempts=2, backoff=Backoff(base=0.01, longest=0.02))
        sink = stack(case.sink(proxy.port), Timeout(5.0), retry, DeadLetter(bury))
        limits = Limits(max_items=5, max_delay=0.01, workers=1 if "redis" in str(case_of) else 2)
        batcher = Batcher(sink, limits=limits, observers=[Heals(proxy)])
        async with batcher:
            before = [await batcher.submit({"id": n, "pad": "x" * 30}) for n in range(5)]
            await batcher.flush()
            proxy.break_by(way)
            during = [await batcher.submit({"id": n, "pad": "x" * 30}) for n in range(5, 25)]
            assert (await batcher.flush(timeout=30.0)).complete, batcher.stats()
        outcomes = {n: receipt.outcome for n, receipt in enumerate([*before, *during])}
        found = Counter(await case.ids())
    assert [(letter.error_type, letter.message) for letter in dead] == []
    good = {n for n, each in outcomes.items() if each in {Outcome.DELIVERED, Outcome.DUPLICATE}}
    assert good <= found.keys()
    nothing_sent = way.at == "connect" and case.connects
    if case.is_harmless or nothing_sent:
        assert good == {*range(25)}, Counter(outcomes.values())
    if case.is_harmless:
        assert {*found.values()} == {1}
    else:
        assert {*outcomes.values()} <= {Outcome.DELIVERED, Outcome.UNKNOWN}
