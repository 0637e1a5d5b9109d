"""Other clients of a pooler that use the same servers at the same time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator


async def _unnamed(dsn: str, end: asyncio.Event) -> None:
    """A client whose unnamed statements would insert wrong rows if they were mistaken for the
    test's.
    """
    con = await asyncpg.connect(dsn, statement_cache_size=0)
    while not end.is_set():
        assert await con.fetchval("SELECT $1::int + 1", 41) == 42
        async with con.transaction():
            assert await con.fetchval("SELECT $1::text || 'x'", "y") == "yx"
    await con.close()


async def _named(dsn: str, end: asyncio.Event) -> None:
    """A client that leaves named statements, with asyncpg's own names, in every server."""
    con = await asyncpg.connect(dsn, statement_cache_size=0)
    number = 0
    while not end.is_set():
        number += 1
        name = f"__asyncpg_stmt_{number % 100:x}__"
        await con.execute(f'DEALLOCATE ALL; PREPARE "{name}" AS SELECT $1::int, $2::text, $3::int')
    await con.close()


@asynccontextmanager
async def crowd(dsn: str) -> AsyncGenerator[None]:
    """Other clients of the same server pool, continuously busy."""
    end = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for client in (_unnamed, _named, _unnamed):
            group.create_task(client(dsn, end))
        try:
            yield
        finally:
            end.set()


@contextmanager
def crowd_beside(dsn: str) -> Generator[None]:
    """The same in a separate thread."""
    loop = asyncio.new_event_loop()
    end, is_busy = asyncio.Event(), threading.Event()

    async def run() -> None:
        async with crowd(dsn):
            is_busy.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    is_busy.wait()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
