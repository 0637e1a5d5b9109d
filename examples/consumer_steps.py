"""Before the handler: skip duplicates, decode, check; then one handler per type of record."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from sluicegate import Consumer
from sluicegate.consumer import HandlerRegister, MemoryLog, MemorySource, check, decode, skip_seen


@dataclass(frozen=True)
class Placed:
    id: int


@dataclass(frozen=True)
class Cancelled:
    id: int


handlers = HandlerRegister(name_of=lambda kind: kind.__name__.lower())


@handlers.register
async def place(event: Placed) -> None:
    print(f"placed {event.id}")


@handlers.register
async def cancel(event: Cancelled) -> None:
    print(f"cancelled {event.id}")


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
    report = await consumer.run(handlers)
    done = report.counts
    print(f"{done.acked} handled, {done.skipped} skipped, {done.terminated} given up")


if __name__ == "__main__":
    asyncio.run(main())
