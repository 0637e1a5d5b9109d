"""A way to queue jobs in PostgreSQL, and the time of one worker for them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

    from asyncpg import Connection

PAYLOAD = '{"amount": 30, "currency": "EUR"}'
WRITERS = 32
KEYS = 1_000
"""Number of keys of enqueued jobs."""
LEASE = 300
"""Seconds of a lease, or of invisibility: longer than a turn."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """A number of jobs; neighbours have different keys."""

    count: int
    keys: int


class Way(Protocol):
    """A way to queue jobs, in its own tables."""

    @property
    def tables(self) -> Sequence[str]:
        """The tables whose rows come and go."""
        ...

    async def install(self, dsn: str) -> None:
        """Create the tables."""
        ...

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Enqueue jobs."""
        ...

    async def take(self, con: Connection, lanes: int, per: int) -> Sequence[Any]:
        """Take jobs of up to `lanes` keys, up to `per` of each; or as many of any keys."""
        ...

    async def done(self, con: Connection, taken: Sequence[Any]) -> None:
        """Note that the jobs of one `take` are handled."""
        ...


@asynccontextmanager
async def filled(dsn: str, way: Way, jobs: Jobs) -> AsyncGenerator[Connection]:
    """Connect to a server with these jobs, and no others, in its tables."""
    import asyncpg

    async with AsyncExitStack() as stack:
        con = await asyncpg.connect(dsn)
        stack.push_async_callback(con.close)
        await con.execute(f"TRUNCATE {', '.join(way.tables)} CASCADE")
        await way.fill(con, jobs)
        await settle_down(con, way)
        yield con


async def settle_down(con: Connection, way: Way) -> None:
    """Do the maintenance of new rows that would otherwise disturb a turn."""
    await con.execute(f"VACUUM ANALYZE {', '.join(way.tables)}")
    await con.execute("CHECKPOINT")


def drained(dsn: str, way: Way, jobs: Jobs, leases: tuple[int, int], count: int) -> Took:
    """Measure the time of one worker for `count` jobs, several keys and jobs at a time."""

    async def turn() -> Took:
        async with filled(dsn, way, jobs) as con:
            # statements are prepared and functions compiled once in a session
            await way.done(con, await way.take(con, 1, 1))
            left, watch = count - 1, Stopwatch()
            while left > 0:
                taken = await way.take(con, *leases)
                assert taken, f"{left} of {count} jobs were not there"
                await way.done(con, taken)
                left -= len(taken)
            return watch.read()

    return asyncio.run(turn())


def fetched(dsn: str, way: Way, hot: int, behind: int, count: int) -> Took:
    """Measure the time of `count` calls that take a job each, of keys other than the first: of that
    key, a job is held and `hot` jobs wait in front.
    """

    async def turn() -> Took:
        async with filled(dsn, way, Jobs(hot, keys=1)) as con:
            held = await way.take(con, 1, 1)
            await way.fill(con, Jobs(behind, keys=behind))
            await settle_down(con, way)
            watch = Stopwatch()
            taken = [await way.take(con, 1, 1) for _ in range(count)]
            took = watch.read()
        assert len(held) == 1
        assert all(len(each) == 1 for each in taken)
        return took

    return asyncio.run(turn())


def looped(dsn: str, way: Way, jobs: Jobs, most: int) -> Took:
    """Measure the time of a loop written by hand, with a handler that does nothing."""
    seen = 0

    async def handle(job: Any) -> None:
        nonlocal seen
        seen += 1

    async def turn() -> Took:
        async with filled(dsn, way, jobs) as con:
            watch = Stopwatch()
            while taken := await way.take(con, most, 1):
                for job in taken:
                    await handle(job)
                await way.done(con, taken)
            took = watch.read()
        assert seen == jobs.count, f"{seen} of {jobs.count}"
        return took

    return asyncio.run(turn())


def enqueued(
    dsn: str, way: Way, enqueue: Callable[[Any, str], Awaitable[object]], count: int
) -> Took:
    """Measure the time of 32 writers for `count` jobs, each in its own transaction."""
    import asyncpg

    async def turn() -> Took:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(filled(dsn, way, Jobs(0, keys=1)))
            pool = await stack.enter_async_context(
                asyncpg.create_pool(dsn, min_size=WRITERS, max_size=WRITERS)
            )
            writers = [await stack.enter_async_context(pool.acquire()) for _ in range(WRITERS)]

            async def write(con: Any, numbers: Iterator[int]) -> None:
                for number in numbers:
                    await enqueue(con, f"order-{number % KEYS}")

            # statements are prepared and functions compiled once in a session
            await asyncio.gather(*(write(con, iter(range(2))) for con in writers))
            numbers, watch = iter(range(count)), Stopwatch()
            await asyncio.gather(*(write(con, numbers) for con in writers))
            return watch.read()

    return asyncio.run(turn())
