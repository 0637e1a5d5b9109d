"""A process that is killed during a backfill: `python killed.py FOLDER ROWS HELD...`.

It handles the rows of a file in any order and never finishes those that are `HELD`. It prints
`ready` once all others are settled and stored.

White box: the map beside a stored position is decoded.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import Commits
from sluicegate.consumer.progress.offset_map import decode
from sluicegate.files import FileSource

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sluicegate import Message
    from sluicegate.consumer import Position, SourceClaim


class Told(FileSource):
    """A source that reports stored positions."""

    rows = 0

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        stored = await super().commit(positions)
        for claim in stored:
            at, text = positions[claim]
            if at + sum(end - start for start, end in decode(at, text)) == self.rows:
                os.write(1, b"ready\n")
        return stored


async def main() -> None:
    folder, rows, *held = sys.argv[1:]
    source = Told(folder)
    source.rows = int(rows) - len(held)

    async def handle(message: Message) -> None:
        if str(message.offset) in held:
            await asyncio.Event().wait()

    consumer = Consumer(source, ordering="unordered", concurrency=50, commits=Commits(every=0.02))
    await consumer.run(handle)


if __name__ == "__main__":
    asyncio.run(main())
