"""Appends the lines of its input to a file, in groups, until the input ends or a signal comes."""

import asyncio
import logging
import sys
from functools import partial
from pathlib import Path

import sluicegate


def append(path: Path, batch: sluicegate.Batch[str]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(batch)
    print(f"{len(batch)} lines, because of {batch.reason.value}", flush=True)


async def main(path: Path) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    limits = sluicegate.Limits(max_items=100, max_delay=5.0)
    async with sluicegate.Batcher(
        partial(append, path), limits=limits, name="lines", shutdown_deadline=10.0
    ) as batcher:
        while line := await lines.readline():
            await batcher.add(line.decode())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sluicegate.run(main(Path(sys.argv[1])))
