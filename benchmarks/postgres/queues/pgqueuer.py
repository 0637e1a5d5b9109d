"""PgQueuer: its queries, and its worker. It has no keys and keeps no order."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...stopwatch import Stopwatch, Took
from .ways import LEASE, PAYLOAD, WRITERS, Jobs, filled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

ENTRYPOINT = "benchmark"
WORKER = uuid.UUID(int=1)


@lru_cache(maxsize=WRITERS)
def _queries(con: Connection) -> Any:
    from pgqueuer import Queries

    return Queries.from_asyncpg_connection(con)


class PgQueuer:
    """Its queries that take jobs, and note that they succeeded."""

    tables = ("pgqueuer", "pgqueuer_log", "pgqueuer_statistics")

    async def install(self, dsn: str) -> None:
        """Create PgQueuer's schema, with the settings for autovacuum that its guide recommends."""
        import asyncpg

        con = await asyncpg.connect(dsn)
        await _queries(con).install()
        await _queries(con).optimize_autovacuum()
        await con.close()

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Enqueue jobs in one statement."""
        payloads = [PAYLOAD.encode()] * jobs.count
        await _queries(con).enqueue([ENTRYPOINT] * jobs.count, payloads, [0] * jobs.count)

    async def take(self, con: Connection, lanes: int, per: int) -> Sequence[Any]:
        """Take the first jobs."""
        from pgqueuer.ports.repository import EntrypointExecutionParameter

        jobs: Sequence[Any] = await _queries(con).dequeue(
            batch_size=lanes * per,
            entrypoints={ENTRYPOINT: EntrypointExecutionParameter(concurrency_limit=0)},
            queue_manager_id=WORKER,
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=LEASE),
        )
        return jobs

    async def done(self, con: Connection, taken: Sequence[Any]) -> None:
        """Move jobs to the log."""
        await _queries(con).log_jobs([(job, "successful", None) for job in taken])


async def enqueue(con: Connection, key: str) -> None:
    """Enqueue a job, without its key."""
    await _queries(con).enqueue(ENTRYPOINT, PAYLOAD.encode())


def run_worker(dsn: str, jobs: Jobs, most: int) -> Took:
    """Measure the time of its worker for these jobs, up to `most` in a batch, with a handler that
    does nothing.
    """
    import asyncpg
    from pgqueuer import QueueManager
    from pgqueuer.types import QueueExecutionMode

    seen = 0

    async def handle(job: Any) -> None:
        nonlocal seen
        seen += 1

    async def turn() -> Took:
        async with filled(dsn, PgQueuer(), jobs):
            con = await asyncpg.connect(dsn)
            manager = QueueManager(_queries(con))
            manager.entrypoint(ENTRYPOINT)(handle)
            watch = Stopwatch()
            await manager.run(batch_size=most, mode=QueueExecutionMode.drain)
            took = watch.read()
            await con.close()
        assert seen == jobs.count, f"{seen} of {jobs.count}"
        return took

    return asyncio.run(turn())
