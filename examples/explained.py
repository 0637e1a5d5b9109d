"""Why a consumer is stuck: one of its orders is retried, and another waits behind it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluicegate import Consumer, Nak, UnavailableError
from sluicegate.consumer import MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Message


async def bill(message: Message) -> Nak | None:
    """Bill an order; for Ann's, the bank does not answer."""
    if message.key == "ann":
        return Nak(30.0, UnavailableError("connection refused"))
    return None


async def main() -> None:
    log = MemoryLog()
    for customer in ("bob", "ann", "ann", "bob"):
        log.produce("orders", "an order", key=customer)
    async with (
        Consumer(MemorySource(log), name="billing") as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(consumer.run(bill))
        await asyncio.sleep(2.5)  # noqa: TID251  # later, an operator looks
        print(consumer.explain())
        consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
