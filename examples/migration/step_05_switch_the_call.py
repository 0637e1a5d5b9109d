"""Step 5: switch the call. `add` returns when the event is in memory; later failures go to
`not_recorded`.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Self

import asyncpg

import sluicegate

Event = tuple[int, str | None]
INSERT = "INSERT INTO audit_events (id, action) VALUES ($1, $2) ON CONFLICT DO NOTHING"
logger = logging.getLogger("audit")


class AuditSink:
    """The pool is created on entry."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    async def __aenter__(self) -> Self:
        self.pool = await asyncpg.create_pool(self.dsn)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.pool.close()

    async def insert(self, event: Event) -> None:
        await self.pool.execute(INSERT, *event)

    async def write(self, batch: sluicegate.Batch[Event]) -> sluicegate.WriteResult | None:
        errors: dict[int, BaseException] = {}
        for index, event in enumerate(batch):
            try:
                await self.insert(event)
            except Exception as error:
                errors[index] = error
        return sluicegate.WriteResult.failed(batch, errors)


def not_recorded(events: Sequence[Event], error: BaseException) -> None:
    logger.error("events %s are not recorded: %r", [number for number, _ in events], error)


async def handle(batcher: sluicegate.Batcher[Event], event: Event) -> None:
    await batcher.add(event)


async def serve(dsn: str, requests: AsyncIterator[Event]) -> None:
    sink = AuditSink(dsn)
    limits = sluicegate.Limits(max_items=500, max_delay=0.2)
    async with sluicegate.Batcher(
        sink, name="audit", limits=limits, on_failure=not_recorded
    ) as batcher:
        async for event in requests:
            await handle(batcher, event)


def main(dsn: str, requests: AsyncIterator[Event]) -> None:
    asyncio.run(serve(dsn, requests))


async def thousand_requests() -> AsyncIterator[Event]:
    """Simulates the network: the next request arrives after the last one has been handled."""
    for number in range(1000):
        yield number, "login"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], thousand_requests())
