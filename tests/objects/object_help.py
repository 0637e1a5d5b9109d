"""Destinations of object sinks, and their contents."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import zstandard
from pyarrow import parquet

from sluicegate import RowBatch, send

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.object_servers import ObjectServer


class Folder:
    """A folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = path.as_uri()
        self.config: Mapping[str, Any] | None = None

    def objects(self) -> dict[str, bytes]:
        """The content of each object, by path."""
        found = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in sorted(found)}


class Bucket:
    """A folder in a new bucket."""

    def __init__(self, server: ObjectServer, name: str) -> None:
        self.server = server
        self.name = name
        server.bucket(name)
        self.url = f"{server.place(name)}/in/here"
        self.config: Mapping[str, Any] | None = server.config()

    def objects(self) -> dict[str, bytes]:
        """The content of each object, by path below the folder."""
        found = self.server.contents(self.name)
        return {path.removeprefix("in/here/"): content for path, content in found.items()}

    def uploads(self) -> Sequence[Any]:
        """The parts of uploads that have neither ended nor been aborted."""
        return self.server.uploads(self.name)


def items_in(objects: Mapping[str, bytes]) -> list[Any]:
    """The items of all objects, by the suffixes of their names."""
    found: list[Any] = []
    for path, content in objects.items():
        if path.endswith(".parquet"):
            found += parquet.ParquetFile(io.BytesIO(content)).read().to_pylist()
            continue
        body = content
        if path.endswith(".gz"):
            body = gzip.decompress(content)
        elif path.endswith(".zst"):
            body = zstandard.ZstdDecompressor().stream_reader(content).read()
        found += map(json.loads, body.splitlines())
    return found


@asynccontextmanager
async def losing_answers(port: int, *, count: int) -> AsyncGenerator[str]:
    """The address of a proxy that closes its first connections instead of passing on their first
    responses.
    """
    numbers = itertools.count()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        loses = next(numbers) < count

        async def answers() -> None:
            try:
                while (data := await from_server.read(65536)) and not loses:
                    writer.write(data)
            finally:  # also of a connection that its client keeps
                writer.close()
                to_server.close()

        async def requests() -> None:
            try:
                while data := await reader.read(65536):
                    to_server.write(data)
            finally:
                to_server.close()

        tasks.update(map(asyncio.ensure_future, (answers(), requests())))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def written(sink: Any, items: Iterable[Any]) -> dict[int, BaseException]:
    """Write a batch of rows; return the errors."""
    return await send(sink, RowBatch(items))
