"""A proxy between one client and a broker that holds requests or answers by their kind.

1. Answers that name the broker's address name the proxy's instead, so every connection of a client
   that is given `bootstrap` leads through its proxy, and no other client does.
2. A connection keeps its order: behind a held frame, the others of its direction wait too. aiokafka
   has one connection to the coordinator (commits, heartbeats, joins) and others for records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sluicegate.testing import EmbeddedKafka

Direction = Literal["request", "answer"]
HOST = b"127.0.0.1"


class Api(IntEnum):
    """Kinds of requests, by Kafka's API keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    COMMIT = 8
    POSITIONS = 9
    COORDINATOR = 10
    JOIN = 11
    HEARTBEAT = 12
    LEAVE = 13
    SYNC = 14
    INIT_PRODUCER = 22
    ADD_PARTITIONS = 24
    ADD_OFFSETS = 25
    END_TRANSACTION = 26
    TRANSACTION_COMMIT = 28
    GROUP_HEARTBEAT = 68
    """The heartbeat of a member to which the broker assigns partitions."""


class Frame(NamedTuple):
    """A request or an answer."""

    api: int
    direction: Direction
    body: bytes


class Gate:
    """Holds all frames of a kind until it is opened, or their connections are cut."""

    def __init__(self, api: Api, direction: Direction, which: Callable[[bytes], bool]) -> None:
        self._kind = (api, direction)
        self._which = which
        self._open = asyncio.Event()
        self._cuts = False
        self.arrived = asyncio.Event()
        """Set once it holds its first frame."""

    def holds(self, frame: Frame) -> bool:
        """Whether this frame has to wait here."""
        is_open = self._open.is_set()
        return not is_open and frame[:2] == self._kind and self._which(frame.body)

    async def passed(self) -> bool:
        """Wait until the gate is opened. False: the frame is lost."""
        self.arrived.set()
        await self._open.wait()
        return not self._cuts

    def open(self) -> None:
        """Forward the held frames, and let later ones pass."""
        self._open.set()

    def cut(self) -> None:
        """Drop the held frames and their connections; later ones pass."""
        self._cuts = True
        self._open.set()


class KafkaProxy:
    """See the module. One per client."""

    def __init__(self, broker: EmbeddedKafka, watch: Callable[[Frame], None] | None) -> None:
        self._watch = watch
        self._port = int(broker.bootstrap.rpartition(":")[2])
        self._server: asyncio.Server | None = None
        self._own_port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._gates: list[Gate] = []
        self._heard = asyncio.Condition()
        self._counts: Counter[tuple[int, Direction]] = Counter()
        self.frames: list[Frame] = []
        """The requests and answers that have arrived, except fetches and heartbeats."""
        self.changes: list[Callable[[Frame], bytes]] = []
        """Functions that replace the body of an answer for the client."""

    @property
    def bootstrap(self) -> str:
        """The address for the client."""
        return f"{HOST.decode()}:{self._own_port}"

    def hold(
        self,
        api: Api,
        direction: Direction,
        which: Callable[[bytes], bool] = lambda _: True,
    ) -> Gate:
        """Hold frames of this kind whose body matches, from now on."""
        gate = Gate(api, direction, which)
        self._gates.append(gate)
        return gate

    async def heard(self, api: Api, direction: Direction, times: int = 1) -> None:
        """Wait for this many frames of a kind, counted from the beginning."""
        async with self._heard:
            await self._heard.wait_for(lambda: self._counts[api, direction] >= times)

    def count(self, api: Api, direction: Direction) -> int:
        """The number of frames of a kind that have arrived."""
        return self._counts[api, direction]

    async def listen(self) -> None:
        """Accept connections, again on the same port after `refuse`."""
        host, port = HOST.decode(), self._own_port
        self._server = await asyncio.start_server(self._serve, host, port)
        self._own_port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Cut all connections and accept no more, like a broker that is down."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for each in self._writers:
            each.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection(HOST.decode(), self._port)
            both = {writer, up_writer}
            self._writers |= both
            asked: asyncio.Queue[int] = asyncio.Queue()
            pumps = [
                asyncio.ensure_future(self._requests(reader, up_writer, asked)),
                asyncio.ensure_future(self._answers(up_reader, writer, asked)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in both:
                    each.close()
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
                self._writers -= both
        writer.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        asked: asyncio.Queue[int],
    ) -> None:
        while True:
            body = await _frame(reader)
            api = int.from_bytes(body[:2])
            if not await self._passes(Frame(api, "request", body)):
                return
            asked.put_nowait(api)
            await _send(to, body)

    async def _answers(
        self,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        asked: asyncio.Queue[int],
    ) -> None:
        theirs, ours = (HOST + port.to_bytes(4) for port in (self._port, self._own_port))
        while True:
            body = await _frame(reader)
            api = await asked.get()
            if not await self._passes(Frame(api, "answer", body)):
                return
            if api in (Api.METADATA, Api.COORDINATOR):
                body = body.replace(theirs, ours)
            for change in self.changes:
                body = change(Frame(api, "answer", body))
            await _send(to, body)

    async def _passes(self, frame: Frame) -> bool:
        if frame.api not in (Api.FETCH, Api.HEARTBEAT, Api.GROUP_HEARTBEAT):
            self.frames.append(frame)
        if self._watch is not None:
            self._watch(frame)
        async with self._heard:
            self._counts[frame[:2]] += 1
            self._heard.notify_all()
        for gate in self._gates:
            if gate.holds(frame) and not await gate.passed():
                return False
        return True


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


async def _send(to: asyncio.StreamWriter, body: bytes) -> None:
    to.write(len(body).to_bytes(4) + body)
    await to.drain()


@asynccontextmanager
async def proxied(
    broker: EmbeddedKafka, watch: Callable[[Frame], None] | None = None
) -> AsyncIterator[KafkaProxy]:
    """A proxy to this broker, for one client; `watch` is called with each frame as it arrives."""
    proxy = KafkaProxy(broker, watch)
    await proxy.listen()
    try:
        yield proxy
    finally:
        proxy.refuse()


class SentCommit(NamedTuple):
    """A request to store positions, as a client sent it."""

    generation: int
    positions: dict[int, tuple[int, str]]
    """Offset and map by partition; of one topic."""


def sent_commits(proxy: KafkaProxy) -> list[SentCommit]:
    """The commits that have arrived at a proxy, in order."""
    return [commit_of(each) for each in proxy.frames if is_commit(each)]


def is_commit(frame: Frame) -> bool:
    """Whether a frame asks to store positions."""
    return frame[:2] == (Api.COMMIT, "request")


def commit_of(frame: Frame) -> SentCommit:
    """What a request of version 2 or 3 asks to store."""
    body = frame.body
    reader = _Reader(body[8:])
    reader.text()
    reader.text()
    generation = reader.number(4)
    reader.text()
    reader.number(8)
    positions: dict[int, tuple[int, str]] = {}
    for _ in range(reader.number(4)):
        reader.text()
        for _ in range(reader.number(4)):
            partition = reader.number(4)
            positions[partition] = (reader.number(8), reader.text())
    return SentCommit(generation, positions)


class _Reader:
    """The fields of a request, one after another."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def number(self, size: int) -> int:
        self._at += size
        return int.from_bytes(self._body[self._at - size : self._at], signed=True)

    def text(self) -> str:
        size = max(0, self.number(2))
        self._at += size
        return self._body[self._at - size : self._at].decode()
