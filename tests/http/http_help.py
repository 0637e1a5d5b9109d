"""A local HTTP server with scripted responses, which records the requests: an ASGI application, on
loopback or in process.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
import zstandard

from sluicegate import RowBatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from sluicegate import Outcome


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> bytes:
        """The received body, uncompressed."""
        if self.headers.get("content-encoding") == "gzip":
            return gzip.decompress(self.raw)
        if self.headers.get("content-encoding") == "zstd":
            return zstandard.ZstdDecompressor().decompress(self.raw)
        return self.raw

    @property
    def items(self) -> list[Any]:
        """The items in the NDJSON body."""
        return [json.loads(line) for line in self.body.splitlines()]


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    """Close the connection in the middle of the answer."""


Step = Callable[[Request], Awaitable[Reply]]


def reply(status: int = 200, body: object = None, **headers: str) -> Step:
    content = (
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    )

    async def step(_: Request) -> Reply:
        return Reply(
            status, content, {name.replace("_", "-"): value for name, value in headers.items()}
        )

    return step


def cut() -> Step:
    async def step(_: Request) -> Reply:
        return Reply(cut=True)

    return step


def at_most(size: int) -> Step:
    """Answer 413 for longer bodies."""

    async def step(request: Request) -> Reply:
        return Reply(413 if len(request.body) > size else 200)

    return step


class Server:
    """An ASGI application that takes one step per request, and `default` once they are used up."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.steps: deque[Step] = deque()
        self.default: Step = reply()
        self.always: dict[bytes, Step] = {}
        """Steps for requests whose body contains a text; these requests are not recorded."""
        self.url = "http://in-process"
        self.called = asyncio.Event()

    def client(self) -> httpx.AsyncClient:
        """A client that reaches it without a socket, for virtual time."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        request = Request(
            scope["method"], scope["path"], scope["query_string"].decode(), headers, raw
        )
        step = next((each for text, each in self.always.items() if text in raw), None)
        if step is None:
            self.requests.append(request)
            self.called.set()
            step = self.steps.popleft() if self.steps else self.default
        answer = await self._until_disconnected(step(request), receive)
        if answer is None:
            return
        length = len(answer.body) + (100 if answer.cut else 0)
        pairs = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
        start = {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(b"content-length", b"%d" % length), *pairs],
        }
        await send(start)
        await send({"type": "http.response.body", "body": answer.body, "more_body": answer.cut})

    async def _until_disconnected(self, step: Awaitable[Reply], receive: Any) -> Reply | None:
        """The step's response, or `None` once the client has disconnected."""
        answering = asyncio.ensure_future(step)
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait([answering, leaving])


def hang() -> Step:
    """Never respond."""

    async def step(_: Request) -> Reply:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    return step


@asynccontextmanager
async def serving(server: Server | None = None, **options: Any) -> AsyncGenerator[Server]:
    """Run the server on loopback; `server.url` is the address. `options` are uvicorn's."""
    app = server or Server()
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if "ssl_certfile" in options else "http"
    app.url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        app, log_config=None, log_level=100, lifespan="off", timeout_graceful_shutdown=1, **options
    )
    config.load()
    runner = uvicorn.Server(config)
    runner.lifespan = config.lifespan_class(config)
    await runner.startup(sockets=[listener])
    try:
        yield app
    finally:
        await runner.shutdown(sockets=[listener])


def batch_of(items: Iterable[Any], maybe: Iterable[int] = ()) -> RowBatch[Any]:
    """A batch outside a batcher; `maybe` are the items whose earlier attempt has an unknown
    outcome.
    """
    batch = RowBatch(items)
    batch.delivery.doubt(maybe)
    return batch


def outcomes(batch: RowBatch[Any]) -> list[Outcome]:
    return [batch.delivery.verdict(index) for index in range(len(batch))]
