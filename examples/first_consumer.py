"""Orders in a log in memory, handled in order for each customer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Message


async def handle(message: Message) -> None:
    if message.value == "placed":
        await asyncio.sleep(0.2 if message.key == "ann" else 0.1)  # noqa: TID251  # some work
    print(f"{message.key}: {message.value}")


async def main() -> None:
    log = MemoryLog()
    for customer, event in [("ann", "placed"), ("ann", "paid"), ("bob", "placed"), ("bob", "paid")]:
        log.produce("orders", event, key=customer)
    consumer = Consumer(MemorySource(log, ends=True), name="orders")
    print(await consumer.run(handle))


if __name__ == "__main__":
    asyncio.run(main())
