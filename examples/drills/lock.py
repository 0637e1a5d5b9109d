"""A lock: a report's transaction locks the table, and every write waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg

from sluicegate import Batcher, Limits

from .drill import stored

if TYPE_CHECKING:
    from .drill import Drill

ALERTS = {"BatcherDestinationUnavailable": 7, "BatcherOutage": 9}
WAITING = """\
SELECT application_name, count(*), pg_blocking_pids(pid) AS blocked_by, left(query, 40) AS query
FROM pg_stat_activity WHERE wait_event_type = 'Lock' GROUP BY 1, 3, 4
"""
HOLDERS = """\
SELECT pid, application_name, state, mode, xact_start
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE relation = 'events'::regclass AND granted ORDER BY xact_start
"""


async def run(drill: Drill) -> set[int]:
    limits = Limits(max_items=500, max_delay=0.2, workers=10)
    async with drill.table() as con:
        report = await asyncpg.connect(
            drill.server.dsn, server_settings={"application_name": "report"}
        )
        async with drill.service(drill.sink(), limits, rate=60) as batcher:

            async def lock() -> None:
                await report.execute("BEGIN; LOCK TABLE events IN SHARE MODE")
                await drill.burst(batcher, 5500)
                await asyncio.sleep(drill.limit(2.0))  # shorter than the Timeout
                drill.look(batcher)
                for row in await con.fetch(WAITING):
                    drill.show(f"waits: {dict(row)}")

            async def kill() -> None:
                await deploy(drill)
                await deploy(drill, lock_timeout=f"{drill.limit(2000):.0f}ms")
                for row in await con.fetch(HOLDERS):
                    drill.show(f"holds: {dict(row)}")
                    if row["application_name"] == "report":
                        await con.execute("SELECT pg_terminate_backend($1)", row["pid"])

            await drill.incident(batcher, lock, kill, "terminate the oldest transaction")
        report.terminate()
        return drill.end(await stored(drill))


async def deploy(drill: Drill, **settings: str) -> None:
    """Stop a service in the middle of the incident: the deadline holds, and items come back."""
    other = Batcher[object](drill.protected(drill.sink(**settings)), name="deployed")
    await other.__aenter__()
    await other.add_many([{"id": -number, "action": "login"} for number in range(1, 1001)])
    report = await other.shutdown(drill.limit(10.0))
    drill.show(f"{settings}: {len(report.unsent)} of 1000 items are in report.unsent")
