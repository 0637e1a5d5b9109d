"""Step 2: define the sink. The slow call moves into it; the batcher will call `write`."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
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
        raise NotImplementedError


async def handle(sink: AuditSink, event: Event) -> None:
    try:
        await sink.insert(event)
    except asyncpg.PostgresError:
        logger.exception("event %d is not recorded", event[0])


async def serve(dsn: str, requests: AsyncIterator[Event]) -> None:
    async with AuditSink(dsn) as sink:
        async for event in requests:
            await handle(sink, event)


def main(dsn: str, requests: AsyncIterator[Event]) -> None:
    asyncio.run(serve(dsn, requests))


async def thousand_requests() -> AsyncIterator[Event]:
    """Simulates the network: the next request arrives after the last one has been handled."""
    for number in range(1000):
        yield number, "login"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], thousand_requests())
