"""Helpers for the tests of `FileSink`."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sluicegate import RowBatch, send

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sluicegate.files import FileSink

WRITER = """
import asyncio, resource, signal, sys
from sluicegate import RowBatch, send
from sluicegate.files import FileSink

async def main(path, items, most, options):
    async with FileSink(path, **options) as sink:
        if most:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the system ends the process in the middle of a write
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        number = 0
        while True:
            errors = await send(sink, RowBatch({"n": number + place, "pad": "x" * 200} for place in range(items)))
            assert not errors, errors
            number += items
            print(number, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4])))
"""


async def written(sink: FileSink, items: Iterable[Any]) -> dict[int, BaseException]:
    return await send(sink, RowBatch(items))


def lines(path: Path) -> list[Any]:
    """Every line, which must be whole."""
    content = path.read_bytes()
    assert not content or content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def writer(path: Path, items: int = 10, most: int = 0, **options: Any) -> subprocess.Popen[str]:
    """A process that appends batches of numbered items until it is killed, and reports the number
    of delivered items after each.
    """
    arguments = [str(path), str(items), str(most), repr(options)]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True
    )


def told(process: subprocess.Popen[str]) -> int:
    """The last number of items that an ended writer reported as delivered."""
    assert process.stdout is not None
    said = process.stdout.read().split("\n")
    return max([int(number) for number in said[:-1]], default=0)


@contextmanager
def room(most: int) -> Iterator[None]:
    """Limit each file of this process to `most` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
