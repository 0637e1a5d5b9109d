"""Movements of accounts, booked in batches; a movement that would overdraw its account is refused."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sluicegate import Ack, Consumer, Nak, ToDeadLetter
from sluicegate.consumer import MemoryLog, MemorySource, Poison

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate import Message

    Answer = Ack | Nak | ToDeadLetter

balances: dict[str, int] = defaultdict(int)


async def book(messages: list[Message]) -> list[Answer]:
    """Book a batch, for example in one transaction, and return a result for each message."""
    print("batch:", ", ".join(f"{message.key} {message.value:+}" for message in messages))
    results: list[Answer] = []
    refused: set[str] = set()
    for message in messages:
        if message.key in refused:
            results.append(Nak())  # delivered again, whatever the result is
        elif balances[message.key] + message.value < 0:
            refused.add(message.key)
            results.append(ToDeadLetter("overdrawn"))
        else:
            balances[message.key] += message.value
            results.append(Ack())
    return results


async def keep(letters: Iterable[Any]) -> None:
    for letter in letters:
        print("dead letter:", letter.item["key"], letter.item["value"], letter.message)


async def main() -> None:
    log = MemoryLog()
    for account, amount in [("ann", 50), ("ann", -80), ("bob", 20), ("ann", 10)]:
        log.produce("movements", amount, key=account)
    consumer = Consumer(MemorySource(log, ends=True), poison=Poison(dead_letters=keep))
    report = await consumer.run_batch(book, size=500, max_wait=0.2)
    print(dict(balances))
    print(report)


if __name__ == "__main__":
    asyncio.run(main())
