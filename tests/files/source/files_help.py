"""Consumers over files, and the messages that they have handled."""

from __future__ import annotations

import gzip
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import zstandard

from sluicegate import Consumer
from sluicegate.consumer import Commits
from sluicegate.files import FileSource
from sluicegate.testing.conformance.source.subject import ClaimReader, RecordingHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sluicegate import Message

GZIP, ZSTD = gzip.compress, zstandard.ZstdCompressor(write_checksum=True).compress


class Handled(list["Message"]):
    """The messages that a consumer has handled, in order."""

    @property
    def values(self) -> list[Any]:
        """The values of the messages."""
        return [message.value for message in self]

    @property
    def places(self) -> list[tuple[str, int]]:
        """The files and rows of the messages."""
        return [(path_of(message), message.offset) for message in self]


def path_of(message: Message) -> str:
    """The path of a message's file."""
    ((name, path),) = message.headers
    assert name == "file"
    return path.decode()


def lines(count: int, start: int = 0) -> bytes:
    """JSON lines with ten keys."""
    rows = ({"user": f"u{at % 10}", "at": at} for at in range(start, start + count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


async def handled(source: FileSource, into: Handled | None = None, **options: Any) -> Handled:
    """Consume a source to its end. Raises the error of the run."""
    found = Handled() if into is None else into

    async def handle(message: Message) -> None:
        found.append(message)

    settings: dict[str, Any] = {"commits": Commits(every=0.02), **options}
    await Consumer(source, **settings).run(handle)
    return found


async def rows(folder: Path, content: bytes | str, name: str, **options: Any) -> list[Any]:
    """The values of the rows of one file."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return (await handled(FileSource(path, **options))).values


@asynccontextmanager
async def reading(source: FileSource) -> AsyncIterator[ClaimReader]:
    """An open source without a consumer."""
    host = RecordingHost()
    async with source.open(host):
        yield ClaimReader(source, host)
