"""The functions of Sluicegate's queue, called by SQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...stopwatch import Stopwatch, Took
from .ways import LEASE, PAYLOAD, filled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from .ways import Jobs

QUEUE = "benchmark"
CLAIM = "SELECT * FROM sluicegate.claim_jobs($1, 'default', 'benchmark', $2, $3, 0, $4)"
SETTLE = "SELECT * FROM sluicegate.settle_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
FILL = """INSERT INTO sluicegate.job (queue, key, payload)
SELECT $1, 'order-' || g % $2, $3 FROM generate_series(0, $4::int - 1) AS g"""

INSERT = "INSERT INTO sluicegate.job (queue, key, payload) VALUES ($1, $2, $3)"


class Lanes:
    """`claim_jobs` and `settle_jobs`."""

    tables = ("sluicegate.job", "sluicegate.lane", "sluicegate.bell")

    async def install(self, dsn: str) -> None:
        """Create the schema and the queue."""
        import asyncpg

        from sluicegate.postgres import install_streams

        await install_streams(dsn)  # queues are part of the schema
        con = await asyncpg.connect(dsn)
        await con.execute("INSERT INTO sluicegate.queue (name) VALUES ($1)", QUEUE)
        await con.close()

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Enqueue jobs in one statement."""
        await con.execute(FILL, QUEUE, jobs.keys, PAYLOAD, jobs.count)

    async def take(self, con: Connection, lanes: int, per: int) -> Sequence[Any]:
        """Lease keys with their first jobs."""
        rows: Sequence[Any] = await con.fetch(CLAIM, QUEUE, lanes, per, float(LEASE))
        return rows

    async def done(self, con: Connection, taken: Sequence[Any]) -> None:
        """Settle jobs, and release their keys."""
        leases: dict[int, str] = {row["r_lease"]: row["r_lane"] for row in taken}
        while leases:
            fates = await con.fetch(
                SETTLE,
                QUEUE,
                list(leases),
                list(leases.values()),
                ["free"] * len(leases),
                [None] * len(leases),
                *(None for _ in range(4)),
                [row["r_place"] for row in taken],
                [row["r_lease"] for row in taken],
            )
            assert all(fate["r_fate"] in {"freed", "empty", "locked"} for fate in fates)
            locked = {fate["r_lease"] for fate in fates if fate["r_fate"] == "locked"}
            leases = {lease: lane for lease, lane in leases.items() if lease in locked}


class LanesWithoutBells(Lanes):
    """The table of jobs without its trigger: jobs enqueued there are never handled."""

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Enqueue jobs as usual, and disable the trigger."""
        await super().fill(con, jobs)
        await con.execute("ALTER TABLE sluicegate.job DISABLE TRIGGER ring")


class LanesWithBells(Lanes):
    """The same table with its trigger enabled again."""

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Enqueue jobs as usual."""
        await con.execute("ALTER TABLE sluicegate.job ENABLE TRIGGER ring")
        await super().fill(con, jobs)


async def insert(con: Connection, key: str) -> None:
    """Enqueue a job."""
    await con.execute(INSERT, QUEUE, key, PAYLOAD)


def consumed(dsn: str, jobs: Jobs) -> Took:
    """Measure the time of a consumer for these jobs, with a handler that does nothing."""
    from sluicegate import Consumer
    from sluicegate.postgres import PostgresQueueSource

    seen = 0

    async def handle(message: Any) -> None:
        nonlocal seen
        seen += 1

    async def turn() -> Took:
        async with filled(dsn, Lanes(), jobs):
            watch = Stopwatch()
            source = PostgresQueueSource(dsn, queue=QUEUE, ends=True)
            await Consumer(source, name="benchmark").run(handle)
            took = watch.read()
        assert seen == jobs.count, f"{seen} of {jobs.count}"
        return took

    return asyncio.run(turn())
