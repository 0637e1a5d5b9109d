"""Functions that handle messages by the type hint of their first parameter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sluicegate import Consumer
from sluicegate.consumer import Envelope, HandlerRegister, MemoryLog, MemorySource


@dataclass(frozen=True)
class Placed:
    order: int
    cents: int


@dataclass(frozen=True)
class Paid:
    order: int


@dataclass(frozen=True)
class Cancelled:
    __type__ = "order-cancelled"
    order: int


handlers = HandlerRegister(unhandled="skip")


@handlers.register
async def place(event: Placed) -> None:
    print(f"order {event.order}: placed, {event.cents / 100:.2f}")


@handlers.register
async def end(event: Envelope[Paid | Cancelled]) -> None:
    message, kind = event.message, type(event.value).__name__.lower()
    print(f"order {event.value.order}: {kind}, in {message.coordinates}")


async def main() -> None:
    log = MemoryLog()
    for kind, text in [
        (b"Placed", b'{"order": 7, "cents": 1250}'),
        (b"Placed", b'{"order": 8, "cents": 300}'),
        (b"Paid", b'{"order": 7}'),
        (b"AddressChanged", b'{"order": 8}'),
        (b"order-cancelled", b'{"order": 8}'),
        (b"Paid", b'{"order": null, "by": "card"}'),
    ]:
        log.produce("orders", text, key="ada", headers=[("type", kind)])

    consumer = Consumer(MemorySource(log, ends=True), poison="skip")
    done = (await consumer.run(handlers)).counts
    print(f"{done.acked} handled, {done.skipped} skipped, {done.terminated} given up")


if __name__ == "__main__":
    asyncio.run(main())
