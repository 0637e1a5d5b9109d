"""Fill a container with items of 1 KiB, empty it, and print the peak of bytes: `python -m
benchmarks.programs.memory WHAT ITEMS`.

WHAT is `nothing` (an interpreter with an empty batcher), `add` or `submit` (a batcher's ledger,
full) or `queue` (an `asyncio.Queue`).
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate import Batch, Batcher, Limits

if TYPE_CHECKING:
    from sluicegate import Receipt

SIZE = 1024


class GatedSink:
    """A sink that writes nothing until it is released."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.count = 0

    async def write(self, batch: Batch[bytes]) -> None:
        await self.gate.wait()
        self.count += len(batch)


def item(number: int) -> bytes:
    """Return separate bytes for every number, all of them touched."""
    return number.to_bytes(SIZE, "little")


async def fill_batcher(items: int, *, receipts: bool) -> None:
    """Fill the ledger to its last byte while the sink is blocked, then drain."""
    sink = GatedSink()
    limits = Limits(
        max_items=min(500, items // 2), max_pending_items=items, max_pending_bytes=items * SIZE
    )
    kept: list[Receipt] = []
    async with Batcher(sink, limits=limits, size_of=len) as batcher:
        for number in range(items):
            if receipts:
                kept.append(await batcher.submit(item(number)))
            else:
                await batcher.add(item(number))
        if batcher.try_add(b"x"):
            raise AssertionError("the ledger was not full")
        sink.gate.set()
    if sink.count != items:
        raise AssertionError(f"{sink.count} of {items} items arrived")


async def fill_queue(items: int) -> None:
    """Put the same items into a queue."""
    queue: asyncio.Queue[bytes] = asyncio.Queue(items)
    for number in range(items):
        await queue.put(item(number))
    while not queue.empty():
        queue.get_nowait()


async def empty_batcher() -> None:
    """Open and close a batcher."""
    async with Batcher(GatedSink(), limits=Limits()):
        pass


def main(what: str, items: int) -> int:
    """Run the measurement; return the peak in bytes."""
    ways = {
        "nothing": empty_batcher(),
        "add": fill_batcher(items, receipts=False),
        "submit": fill_batcher(items, receipts=True),
        "queue": fill_queue(items),
    }
    chosen = ways.pop(what)
    for other in ways.values():
        other.close()
    asyncio.run(chosen)
    return peak()


def peak() -> int:
    """Return the peak memory of this process in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # On Linux, ru_maxrss starts with the parent's value, even across fork and exec.
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
