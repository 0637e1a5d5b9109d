"""A schema registry of our own, that answers whatever a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

UNKNOWN = 404, {"error_code": 40403, "message": "Schema not found"}


@dataclass
class ScriptedRegistry:
    """Answers by path, with a status and a body: JSON, or bytes as they are."""

    url: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers wait for it; it is set at first."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def has(self, schema_id: int, schema: Any, **more: Any) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.answers[f"/schemas/ids/{schema_id}"] = 200, {"schema": text, **more}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split("\r\n")[0].split(" ")
            self.requests.append(f"{method} {path}")
            self.headers.append(head)
            self.asked.set()
            await self.open.wait()
            status, body = self.answers.get(path, self.answers.get(path.split("?")[0], UNKNOWN))
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(content)))
            writer.write(content)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def scripted_registry(ssl: Any = None) -> AsyncIterator[ScriptedRegistry]:
    registry = ScriptedRegistry()
    registry.open.set()
    server = await asyncio.start_server(registry.serve, "127.0.0.1", 0, ssl=ssl)
    async with server:
        port = server.sockets[0].getsockname()[1]
        registry.url = f"http{'s' if ssl else ''}://{'localhost' if ssl else '127.0.0.1'}:{port}"
        yield registry
        registry.open.set()
