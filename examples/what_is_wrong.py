"""The first place to look: a batcher's state and log while its destination refuses every write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluicegate import AddTimeout, Batch, Batcher, Limits, RefusedError, Retry, stack

if TYPE_CHECKING:
    from sluicegate.batcher import ShutdownReport


async def write(_: Batch[int]) -> None:
    raise RefusedError("no INSERT on table events", repair="grant INSERT on table events to app")


async def main() -> ShutdownReport[int]:
    limits = Limits(max_items=10, max_delay=0.01, max_pending_items=20)
    batcher = Batcher(stack(write, Retry()), name="audit", limits=limits)
    async with batcher:
        try:
            for number in range(1_000):
                await batcher.add(number, timeout=0.5)
        except AddTimeout as error:
            print(error)
        destination = batcher.stats().destination
        print(f"{destination.state}: {destination.reason}")
        print(f"to repair: {destination.repair}")
        report = await batcher.shutdown(deadline=1.5)
    print(report.tally)
    return report


if __name__ == "__main__":
    asyncio.run(main())
