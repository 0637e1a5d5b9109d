"""Movements of accounts, keyed by order number: handled in order by that key, and by account."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.consumer import SourceRecord


def account_of(record: SourceRecord) -> object:
    account, _ = str(record.value).split()
    return account


async def main() -> None:
    log = MemoryLog()
    for number, movement in enumerate(["ann +50", "ann -30", "bob +20", "bob -10"]):
        log.produce("movements", movement, key=f"order-{number}")

    for title, key in [("by the record's key", None), ("by account", account_of)]:
        done: list[str] = []

        async def book(message: Message, done: list[str] = done) -> None:
            _, amount = message.value.split()
            await asyncio.sleep(abs(int(amount)) / 100)  # noqa: TID251  # large ones take longer
            done.append(message.value)

        log.positions.clear()  # from the beginning
        await Consumer(MemorySource(log, ends=True), key=key).run(book)
        print(f"{title}: {', '.join(done)}")


if __name__ == "__main__":
    asyncio.run(main())
