"""Ten producers with 50 items a second each: with one batcher for all, and with a batcher for each,
on the virtual clock.
"""

import asyncio

import sluicegate
from sluicegate.sinks import MemorySink
from sluicegate.testing import FakeClock

PRODUCERS = 10
ITEMS = 500
BETWEEN = 0.02


async def produce(batcher: sluicegate.Batcher[int], clock: FakeClock) -> None:
    for number in range(ITEMS):
        await batcher.add(number)
        await clock.sleep(BETWEEN)


def batcher(sink: sluicegate.Sink[int]) -> sluicegate.Batcher[int]:
    return sluicegate.Batcher(sink, limits=sluicegate.Limits(max_items=500, max_delay=0.2))


def tell(what: str, sink: MemorySink[int]) -> None:
    print(
        f"{what}: {len(sink.batches)} writes, {len(sink.items) / len(sink.batches):.0f} items "
        "in each"
    )


async def main(clock: FakeClock) -> None:
    sink: MemorySink[int] = MemorySink()
    async with batcher(sink) as shared, asyncio.TaskGroup() as group:
        for _ in range(PRODUCERS):
            group.create_task(produce(shared, clock))
    tell("one batcher for all", sink)

    sink.clear()

    async def alone() -> None:
        async with batcher(sink) as own:
            await produce(own, clock)

    async with asyncio.TaskGroup() as group:
        for _ in range(PRODUCERS):
            group.create_task(alone())
    tell("a batcher for each", sink)


if __name__ == "__main__":
    with FakeClock() as virtual:
        virtual.run(main(virtual))
