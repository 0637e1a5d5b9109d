"""The limits of a consumer: memory, time, and dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import InFlight, Keys, MemoryLog, MemorySource, Poison
from sluicegate.errors import DeadLetterLimit
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Message


def orders() -> MemoryLog:
    """Two partitions that share the keys of customers, and records without a key."""
    log = MemoryLog()
    for number in range(20):
        log.produce("orders", f"order {number}", key=f"customer-{number % 4}", partition=number % 2)
    log.produce("orders", "slow", key="customer-0")
    for number in range(5):
        log.produce("orders", "broken", partition=number % 2)
    return log


async def main() -> None:
    async def bill(message: Message) -> None:
        if message.value == "broken":
            raise ValueError("no amount")
        if message.value == "slow":
            await asyncio.Event().wait()  # until its timeout

    consumer = Consumer(
        MemorySource(orders(), ends=True),
        name="billing",
        key=Keys(
            scope="topic",  # equal keys of two partitions are one key
            keyless="parallel",  # records without a key are independent of each other
        ),
        in_flight=InFlight(
            100,
            bytes=1 << 20,  # of what `size_of` returns
            size_of=lambda record: len(str(record.value)),
            per_key=10,  # a partition with more records of one key is fetched last
            fetch_max=50,
        ),
        on_nak="redeliver",  # later records of the key pass a failed one
        timeout=0.5,
        drain=1.0,
        stall_after=30.0,
        poison=Poison(
            "skip",
            dead_letters=MemorySink(),
            max_dead_letter_ratio=0.5,
            max_consecutive_dead_letters=3,
        ),
    )
    async with consumer:
        try:
            await consumer.run(bill)
        except DeadLetterLimit as error:
            print("stopped:", str(error).split(";")[0])
        print(consumer.stats().counts.acked, "acknowledged")


if __name__ == "__main__":
    asyncio.run(main())
