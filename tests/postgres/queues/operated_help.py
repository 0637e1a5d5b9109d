"""Queues operated through an administration, and jobs that fail."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.postgres.queues.jobs_help import claim

from sluicegate.postgres import QueueAdmin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.streams.log_help import Log

WITHIN = 30.0
_SETTLE = "SELECT r_fate FROM {s}.settle_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, '{{}}', '{{}}')"


@asynccontextmanager
async def operated(log: Log) -> AsyncGenerator[tuple[Any, QueueAdmin]]:
    """A connection as the superuser, and an administration."""
    async with (
        asyncio.timeout(WITHIN),
        log.connected() as con,
        QueueAdmin(log.dsn, schema=log.schema) as admin,
    ):
        yield con, admin


async def end(con: Any, log: Log, queue: str, row: Any, action: str, delay: float = 0.0) -> str:
    """Settle the lease of a claimed row with an action for its job, after its attempts."""
    values = (
        *([row["r_lease"]], [row["r_lane"]], [action], [row["r_place"]], [delay]),
        *([row["r_attempts"]], ["boom"], ["ValueError"]),
    )
    return str(await con.fetchval(_SETTLE.format(s=log.sql), queue, *values))


async def fail(con: Any, log: Log, queue: str, times: int = 1) -> str:
    """Claim the first job this many times with naks in between, then fail it; return its result."""
    for _ in range(times - 1):
        (row, *_) = await claim(con, log, queue)
        await end(con, log, queue, row, "nak")
    (row, *_) = await claim(con, log, queue)
    return await end(con, log, queue, row, "fail")
