"""Readings are stored on disk while the uplink is down, and sent after a restart."""

from __future__ import annotations

import asyncio
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sluicegate import Batcher, Retry, UnavailableError, stack
from sluicegate.flow import Spool

if TYPE_CHECKING:
    from sluicegate import Batch


class Uplink:
    """A destination; any sink works here."""

    def __init__(self, *, is_up: bool) -> None:
        self.is_up = is_up
        self.received: list[float] = []

    async def write(self, batch: Batch[dict[str, float]]) -> None:
        if not self.is_up:
            raise UnavailableError("no network")
        self.received += [reading["celsius"] for reading in batch]


async def run(folder: str, uplink: Uplink, readings: list[float]) -> None:
    """The life of one process."""
    spool = Spool(folder, max_bytes="2GiB")
    sink = stack(uplink, Retry())
    async with Batcher(sink, name="readings", spool=spool, shutdown_deadline=1.0) as batcher:
        for celsius in readings:
            print(celsius, await batcher.deliver({"celsius": celsius}))
    spool_stats = batcher.stats().spool
    assert spool_stats is not None
    print(f"received: {uplink.received}; left in the spool: {spool_stats.items}")


async def main(folder: str) -> None:
    await run(folder, Uplink(is_up=False), [20.5, 20.7])
    await run(folder, Uplink(is_up=True), [21.0])


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(folder))
