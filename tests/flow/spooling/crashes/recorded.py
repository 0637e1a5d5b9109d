"""A batcher with a spool whose files are recorded: `recorded.py FOLDER RECORD SEED FIRST DURABILITY`.

Adds records of its own: `+` items whose `add` has returned, `=` the `write_key` of a batch that is at
the destination, and its items.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluicegate import Backoff, Batcher, Limits, Retry, TransientError
from sluicegate.flow import Spool

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Batch

    Tell = Callable[..., None]

KEYS = 4


def item_of(n: int) -> dict[str, Any]:
    """An item, whose key and size depend on its number."""
    return {"key": n % KEYS, "n": n, "text": "é" * (n * 37 % 900)}


def key_of(item: dict[str, Any]) -> int:
    """The key of an item."""
    found: int = item["key"]
    return found


class Destination:
    """Fails now and then, and may be down until the end."""

    def __init__(self, tell: Tell, chance: random.Random) -> None:
        self._tell = tell
        self._chance = chance
        self._left = chance.choice([0, 5, 20, 1000])

    async def write(self, batch: Batch[Any]) -> None:
        self._left -= 1
        if self._left < 0 or self._chance.random() < 0.2:
            raise TransientError("down")
        self._tell("=", batch.write_key, *[item["n"] for item in batch])


async def run(folder: Path, tell: Tell, seed: int, first: int, **options: Any) -> None:
    """Write items of several keys, sometimes many at once."""
    chance = random.Random(seed)
    sink = Retry(attempts=100_000, backoff=Backoff(base=0.001, longest=0.01))(
        Destination(tell, chance)
    )
    size = chance.choice([1 << 16, 1 << 26])
    count = 15 if size == 1 << 16 else 50  # so that a file is full, or its log is checkpointed
    async with (
        Batcher(
            sink,
            spool=Spool(folder, segment_bytes=size, sync_delay=0.0005, **options),
            key=key_of,
            limits=Limits(max_items=8, max_delay=0.001, workers=3),
            shutdown_deadline=0.3,
        ) as batcher,
        asyncio.TaskGroup() as group,
    ):

        async def produce(key: int) -> None:
            n = first + key
            for _ in range(count):
                items = [item_of(n + at * KEYS) for at in range(chance.choice([1, 1, 1, 1, 15]))]
                n += len(items) * KEYS
                await (batcher.add_many(items) if len(items) > 1 else batcher.add(items[0]))
                tell("+", *[item["n"] for item in items])

        for key in range(KEYS):
            group.create_task(produce(key))


def main(folder: str, record: str, seed: str, first: str, durability: str) -> None:
    """Run with the record open."""
    out = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(kind: str, *what: object) -> None:
        text = " ".join(map(str, what)).encode()
        os.write(out, b"%s 0 0 %d\n%s" % (kind.encode(), len(text), text))

    asyncio.run(run(Path(folder), tell, int(seed), int(first), durability=durability))


if __name__ == "__main__":
    main(*sys.argv[1:])
