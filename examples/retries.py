"""Orders of shops: one cannot be handled, and its shop is parked until the cause is repaired."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING

from sluicegate import Consumer, Terminate
from sluicegate.consumer import MemoryLog, MemoryParkStore, MemorySource, Poison
from sluicegate.errors import SluicegateWarning

if TYPE_CHECKING:
    from sluicegate import Message

prices = {"tea": 4}


async def bill(message: Message) -> Terminate | None:
    """Bill an order, if its article has a price."""
    if message.value not in prices:
        return Terminate(f"no price for {message.value}")
    print(message.key, "pays", prices[message.value], "for", message.value)
    return None


async def main() -> None:
    log = MemoryLog()
    for shop, article in [("ann", "tea"), ("ann", "jam"), ("ann", "tea"), ("bob", "tea")]:
        log.produce("orders", article, key=shop)
    warnings.simplefilter("ignore", SluicegateWarning)  # of a store in memory
    store = MemoryParkStore()
    consumer = Consumer(MemorySource(log, ends=True), name="billing", poison=Poison(parked=store))
    print(await consumer.run(bill))

    prices["jam"] = 7
    consumer = Consumer(MemorySource(log), name="billing", poison=Poison(parked=store))
    async with consumer, asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run(bill))
        await consumer.wait_ready()
        print(await consumer.unpark("ann"))
        consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
