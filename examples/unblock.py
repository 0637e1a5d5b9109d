"""An invoice that cannot be handled blocks only its customer, until it is repaired."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluicegate import Consumer, PermanentError
from sluicegate.consumer import MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Message

addresses = {"bob": "Bergen"}


async def send(message: Message) -> None:
    if message.key not in addresses:
        raise PermanentError("no address")
    print(f"{message.value} to {addresses[message.key]}")


async def main() -> None:
    log = MemoryLog()
    for customer, invoice in [("ann", "A1"), ("ann", "A2"), ("bob", "B1"), ("bob", "B2")]:
        log.produce("invoices", invoice, key=customer)
    async with (
        Consumer(MemorySource(log), name="invoices", poison="block") as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(consumer.run(send))
        await asyncio.sleep(1.0)  # noqa: TID251  # later, an operator looks
        for message in consumer.blocked:
            print(f"blocked: {message}")
        addresses["ann"] = "Arendal"
        consumer.unblock("ann")
        await asyncio.sleep(1.0)  # noqa: TID251  # and later the service stops
        consumer.stop()
    print(run.result())


if __name__ == "__main__":
    asyncio.run(main())
