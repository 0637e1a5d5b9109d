"""What waiting items, keys and tenants take beside the items themselves, in traced bytes: `python -m
benchmarks.programs.held WHAT COUNT` prints the bytes of all of them together.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

from penstock import Batch, Batcher, Limits

from ..peers.skeleton import Skeleton

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

SIZE = 500
NEVER = 3600.0


class GatedSink:
    """Writes nothing until it is let."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def write(self, batch: Batch[int]) -> None:
        await self.gate.wait()


async def traced() -> int:
    """Bytes held now, once the tasks that are ready have run."""
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def batcher(
    items: Sequence[int], *, submits: bool = False, ended: bool = False, **settings: Any
) -> int:
    """Items that wait in a batcher; or that have waited, once they have `ended`."""
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
    """The same items in the skeleton."""
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
    """The same items in a queue."""
    before = await traced()
    held: asyncio.Queue[int] = asyncio.Queue()
    for item in items:
        await held.put(item)
    return await traced() - before


def own(item: int) -> int:
    """A key, or a tenant, of its own for every item."""
    return item


async def above_plain(items: Sequence[int], **settings: Any) -> int:
    """What items take with these settings, above what they take without."""
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
    """Measure twice, since the first use of a thing allocates what stays; return the second."""
    items = list(range(1000, 1000 + count))
    tracemalloc.start()
    await WAYS[what](items)
    return await WAYS[what](items)


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], int(sys.argv[2]))))
