"""A proxy that truncates replies, and a server that refuses everything."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LINE = b"\r\n"


class RedisProxy:
    """Forwards everything; once, it forwards only some replies before it closes the connection or
    stops responding.
    """

    def __init__(self) -> None:
        self.url = ""
        self.pass_lines: int | None = None
        """The number of lines of replies to forward before that; an id takes two lines, a number
        one.
        """
        self.is_silent = False
        self.cut = asyncio.Event()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward data until one side ends."""
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward replies in the same way."""
        while data := await reader.read(1 << 16):
            if self.pass_lines is not None:
                lines = data.split(LINE)
                if len(lines) > self.pass_lines + 1:
                    data = b"".join(line + LINE for line in lines[: self.pass_lines])
                    self.pass_lines = None
                    writer.write(data)
                    self.cut.set()
                    if not self.is_silent:
                        return
                    continue
                self.pass_lines -= len(lines) - 1
            writer.write(data)


@asynccontextmanager
async def proxied(url: str) -> AsyncGenerator[RedisProxy]:
    """A proxy in front of a server."""
    proxy, there = RedisProxy(), urlsplit(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(there.hostname, there.port)
        ways = [
            asyncio.create_task(proxy.relay(reader, far_writer)),
            asyncio.create_task(proxy.answers(far_reader, writer)),
        ]
        running.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        writer.close()
        far_writer.close()

    running: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        proxy.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy
        if running:
            await asyncio.wait(running)


@asynccontextmanager
async def refusing(answer: str, *, closes: bool = False) -> AsyncGenerator[str]:
    """The URL of a server that answers `XADD` with this error, and everything else with `PONG`.

    With `closes` it answers only the first `XADD`, and closes the connection.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            count = data.count(b"XADD")
            if closes and count:
                writer.write(f"-{answer}\r\n".encode())
                break
            writer.write(f"-{answer}\r\n".encode() * count or b"+PONG\r\n" * data.count(b"*"))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
