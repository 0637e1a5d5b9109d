"""Step 1: find the call. `insert` is a round trip and a commit for every event."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator

import asyncpg

Event = tuple[int, str | None]
INSERT = "INSERT INTO audit_events (id, action) VALUES ($1, $2) ON CONFLICT DO NOTHING"
logger = logging.getLogger("audit")


async def insert(pool: asyncpg.Pool, event: Event) -> None:
    await pool.execute(INSERT, *event)


async def handle(pool: asyncpg.Pool, event: Event) -> None:
    try:
        await insert(pool, event)
    except asyncpg.PostgresError:
        logger.exception("event %d is not recorded", event[0])


async def serve(dsn: str, requests: AsyncIterator[Event]) -> None:
    async with asyncpg.create_pool(dsn) as pool:
        async for event in requests:
            await handle(pool, event)


def main(dsn: str, requests: AsyncIterator[Event]) -> None:
    asyncio.run(serve(dsn, requests))


async def thousand_requests() -> AsyncIterator[Event]:
    """Simulate the network: the next request arrives when the last one has been handled."""
    for number in range(1000):
        yield number, "login"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], thousand_requests())
