"""procrastinate: its functions by SQL, and its worker. The key of a job is its lock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...stopwatch import Stopwatch, Took
from .ways import PAYLOAD, Jobs, filled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

TASK = "benchmark"
FILL = f"""INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args)
SELECT 'benchmark', '{TASK}', 'order-' || g % $2, $1 FROM generate_series(0, $3::int - 1) AS g"""
TAKE = "SELECT * FROM procrastinate_fetch_job_v2(ARRAY['benchmark'], NULL) WHERE id IS NOT NULL"
DONE = "SELECT procrastinate_finish_job_v1($1, 'succeeded', true)"
DEFER = f"""SELECT procrastinate_defer_jobs_v1(ARRAY[
  ROW('benchmark', '{TASK}', 0, $1, NULL, $2, NULL)::procrastinate_job_to_defer_v1])"""
AT_ONCE = 10
"""Number of jobs that its worker handles concurrently."""


class Procrastinate:
    """Its functions that fetch one job, finish it and delete it."""

    tables = ("procrastinate_jobs", "procrastinate_events")

    async def install(self, dsn: str) -> None:
        """Create procrastinate's schema."""
        import asyncpg
        from procrastinate.schema import SchemaManager

        con = await asyncpg.connect(dsn)
        await con.execute(SchemaManager.get_schema())
        await con.close()

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Defer jobs in one statement, without their notifications and events."""
        async with con.transaction():
            await con.execute("SET LOCAL session_replication_role = replica")  # no triggers
            await con.execute(FILL, PAYLOAD, jobs.keys, jobs.count)

    async def take(self, con: Connection, lanes: int, per: int) -> Sequence[Any]:
        """Fetch a job: there is no function for several."""
        rows: Sequence[Any] = await con.fetch(TAKE)
        return rows

    async def done(self, con: Connection, taken: Sequence[Any]) -> None:
        """Finish jobs."""
        for row in taken:
            await con.execute(DONE, row["id"])


async def defer(con: Connection, key: str) -> None:
    """Defer a job with a lock."""
    await con.execute(DEFER, key, PAYLOAD)


def worked(dsn: str, jobs: Jobs) -> Took:
    """Measure the time of its worker for these jobs, with a handler that does nothing. It ends when
    no job is ready, so there must be more keys than concurrent jobs.
    """
    from procrastinate import App, PsycopgConnector

    seen = 0
    connector = PsycopgConnector(conninfo=dsn, min_size=AT_ONCE, max_size=AT_ONCE)
    app = App(connector=connector)

    async def handle(**job: Any) -> None:
        nonlocal seen
        seen += 1

    app.task(name=TASK, queue="benchmark")(handle)

    async def turn() -> Took:
        async with filled(dsn, Procrastinate(), jobs), app.open_async():
            watch = Stopwatch()
            await app.run_worker_async(
                queues=["benchmark"],
                concurrency=AT_ONCE,
                wait=False,
                listen_notify=False,
                delete_jobs="always",
                install_signal_handlers=False,
            )
            took = watch.read()
        assert seen == jobs.count, f"{seen} of {jobs.count}"
        return took

    return asyncio.run(turn())
