"""A proxy whose connections can become silent: they stay open, and their bytes are dropped. A server
behind it can be frozen, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sluicegate.testing import EmbeddedPostgres


class SilentProxy:
    """Forwards connections to the server of a DSN."""

    def __init__(self, dsn: str) -> None:
        self._target = urlsplit(dsn)
        self._open: list[asyncio.Event] = []
        """For each forwarded connection, whether it is silent."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests_left: int | None = None
        """Until silence begins; `None` if it is not planned."""
        self.dsn = ""

    def silence_after(self, requests: int) -> None:
        """Make the connections of that time silent at the next request after `requests` more.

        Requests are what clients send after they have logged in.
        """
        self.requests_left = requests

    def _count(self, data: bytes) -> None:
        """Note what a client sends; a login begins with other bytes."""
        if self.requests_left is None or data[:1] in {b"\0", b"p"}:
            return
        if self.requests_left == 0:
            self.requests_left = None
            self.silence()
        else:
            self.requests_left -= 1

    def silence(self) -> int:
        """Make all present connections silent for ever, while new ones work; return their number."""
        for each in self._open:
            each.set()
        count = len(self._open)
        self._open.clear()
        return count

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        silent = asyncio.Event()
        assert self._target.port is not None
        far_reader, far_writer = await asyncio.open_connection(
            self._target.hostname, self._target.port
        )
        self._open.append(silent)
        pumps = [
            asyncio.ensure_future(_pump(reader, far_writer, silent, self._count)),
            asyncio.ensure_future(_pump(far_reader, writer, silent)),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):  # by `close`
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for each in (writer, far_writer):
                each.close()
            with contextlib.suppress(ValueError):
                self._open.remove(silent)
            self._tasks.discard(task)

    async def close(self) -> None:
        """End all connections."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    silent: asyncio.Event,
    count: Callable[[bytes], None] = lambda _: None,
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            count(data)
            if not silent.is_set():
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def silent_proxy(dsn: str) -> AsyncGenerator[SilentProxy]:
    """A proxy in front of a server, with its DSN."""
    proxy = SilentProxy(dsn)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = urlsplit(dsn)
    host = target.netloc.rpartition("@")[0]
    proxy.dsn = target._replace(netloc=f"{host}@127.0.0.1:{port}".removeprefix("@")).geturl()
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()


async def freeze(server: EmbeddedPostgres, seconds: float) -> None:
    """Freeze all processes of a server for this long."""
    await asyncio.to_thread(server.pause)
    try:
        await asyncio.sleep(seconds)
    finally:
        await asyncio.to_thread(server.resume)
