"""Before the handler: skip duplicates, decode, check; then one handler per type of record."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from sluicegate import Consumer
from sluicegate.consumer import HandlersByType, MemoryLog, MemorySource, check, decode, skip_seen

if TYPE_CHECKING:
    from sluicegate import Message


async def place(message: Message) -> None:
    print(f"placed {message.value['id']}")


async def cancel(message: Message) -> None:
    print(f"cancelled {message.value['id']}")


def has_id(value: Any) -> bool:
    return "id" in value


async def main() -> None:
    log = MemoryLog()
    for event, kind, text in [
        (b"e1", b"placed", b'{"id": 7}'),
        (b"e2", b"cancelled", b'{"id": 7}'),
        (b"e1", b"placed", b'{"id": 7}'),  # sent twice
        (b"e3", b"placed", b"{oh no"),
        (b"e4", b"placed", b'{"amount": 3}'),
        (b"e5", b"renamed", b'{"id": 7}'),
        (b"e6", b"placed", b'{"id": 8}'),
    ]:
        log.produce("orders", text, key="ada", headers=[("event-id", event), ("type", kind)])

    first: dict[object, str] = {}
    consumer = Consumer(
        MemorySource(log, ends=True),
        steps=[
            skip_seen(
                lambda key, record: first.setdefault(key, record) != record, header="event-id"
            ),
            decode(json.loads),
            check(has_id),
        ],
        poison="skip",
    )
    report = await consumer.receive(HandlersByType("type", {"placed": place, "cancelled": cancel}))
    done = report.counts
    print(f"{done.acked} handled, {done.skipped} skipped, {done.terminated} given up")


if __name__ == "__main__":
    asyncio.run(main())
