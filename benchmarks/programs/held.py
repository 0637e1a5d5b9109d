"""The memory of waiting items, keys and tenants without the items themselves: `python -m
benchmarks.programs.held WHAT COUNT` prints the total of traced bytes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

from sluicegate import Batch, Batcher, Limits

from ..peers.skeleton import Skeleton

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

SIZE = 500
NEVER = 3600.0


class GatedSink:
    """A sink that writes nothing until it is released."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def write(self, batch: Batch[int]) -> None:
        await self.gate.wait()


async def traced() -> int:
    """Return the currently traced bytes, after ready tasks have run."""
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def batcher(
    items: Sequence[int], *, submits: bool = False, ended: bool = False, **settings: Any
) -> int:
    """Put items into a batcher, where they wait or, with `ended`, have been written."""
    sink = GatedSink()
    limits = Limits(max_items=SIZE, max_delay=NEVER, max_pending_items=2 * len(items))
    receipts: list[object] = [None] * len(items)
    async with Batcher(sink, limits=limits, **settings) as batcher:
        before = await traced()
        for number, item in enumerate(items):
            if submits:
                receipts[number] = await batcher.submit(item)
            else:
                await batcher.add(item)
        if ended:
            sink.gate.set()
            await batcher.flush()
        held = await traced() - before
        sink.gate.set()
    return held


async def skeleton(items: Sequence[int]) -> int:
    """Put the same items into the skeleton."""
    gate = asyncio.Event()

    async def write(_: object) -> None:
        await gate.wait()

    async with Skeleton[int](write, size=SIZE, linger=NEVER, depth=2 * len(items)) as skeleton:
        before = await traced()
        for item in items:
            await skeleton.add(item)
        held = await traced() - before
        gate.set()
    return held


async def queue(items: Sequence[int]) -> int:
    """Put the same items into a queue."""
    before = await traced()
    held: asyncio.Queue[int] = asyncio.Queue()
    for item in items:
        await held.put(item)
    return await traced() - before


def own(item: int) -> int:
    """Return a separate key or tenant for every item."""
    return item


async def above_plain(items: Sequence[int], **settings: Any) -> int:
    """Measure the additional memory of items with these settings."""
    ended = bool(settings.get("ended"))
    plain = await batcher(items, ended=ended)
    return await batcher(items, **settings) - plain


WAYS: dict[str, Callable[[Sequence[int]], Awaitable[int]]] = {
    "add": batcher,
    "submit": lambda items: batcher(items, submits=True),
    "skeleton": skeleton,
    "queue": queue,
    "key": lambda items: above_plain(items, key=own),
    "tenant": lambda items: above_plain(items, tenant=own),
    "past-key": lambda items: above_plain(items, key=own, ended=True),
    "past-tenant": lambda items: above_plain(items, tenant=own, ended=True),
}


async def main(what: str, count: int) -> int:
    """Measure twice, since the first use makes lasting allocations; return the second result."""
    items = list(range(1000, 1000 + count))
    tracemalloc.start()
    await WAYS[what](items)
    return await WAYS[what](items)


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], int(sys.argv[2]))))
