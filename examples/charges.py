"""Charges of customers: one becomes a dead letter, one is retried, and a restart loses none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluicegate import Consumer, RetryPolicy, ToDeadLetter, TransientError
from sluicegate.consumer import MemoryLog, MemorySource, Poison

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate import Message


async def charge(message: Message) -> ToDeadLetter | None:
    if message.value <= 0:
        return ToDeadLetter("nothing to pay")
    if message.key == "ann" and message.attempt == 1:
        raise TransientError("the bank is busy")
    await asyncio.sleep(3.0 if message.key == "eve" else 0.01)  # noqa: TID251  # the bank
    print(f"charged {message.key} {message.value}, attempt {message.attempt}")
    return None


async def keep(letters: Iterable[Any]) -> None:
    for letter in letters:
        print(f"dead letter of {letter.item['key']}: {letter.message}")


async def main() -> None:
    log = MemoryLog()
    for customer, amount in [("ann", 30), ("bob", 0), ("bob", 25), ("eve", 20), ("eve", 45)]:
        log.produce("charges", amount, key=customer)
    for _ in ("before a deployment", "after it"):
        consumer = Consumer(
            MemorySource(log),
            name="billing",
            retry=RetryPolicy(attempts=5),
            poison=Poison(dead_letters=keep),
            drain=5.0,
        )
        asyncio.get_running_loop().call_later(1.0, consumer.stop)
        report = await consumer.run(charge)
        for partition, position in report.positions.items():
            print(f"{report}; {partition} is at {position}")


if __name__ == "__main__":
    asyncio.run(main())
