"""The cost of an enqueue, a claim and a settle in a queue with up to a million keys that wait.

Each key has one job. The queues are filled once by one statement each; a turn settles 50 jobs, and
enqueues 50 for other keys. A turn that scans a table fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from ...destination import NO_WAIT, postgres_server
from ...harness import US_PER_ITEM, Case, placed
from ...postgres.queues.lanes import FILL, SETTLE, Lanes
from ...postgres.queues.ways import LEASE, PAYLOAD
from ...stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...harness import Contender
    from ...stopwatch import Took

KEYS = (1_000, 100_000, 1_000_000)
TAKEN = 50
CLAIM = "SELECT * FROM sluicegate.claim_jobs($1, 'default', 'benchmark', $2, 1, 0, $3)"
SCANS = """SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables
WHERE schemaname = 'sluicegate' AND relname IN ('job', 'lane')"""
ENQUEUE = "enqueue"
CLAIMED, SETTLED = "claim", "settle"


async def _fill(dsn: str, count: int) -> None:
    import asyncpg

    await Lanes().install(dsn)
    con = await asyncpg.connect(dsn)
    for keys in _points(count):
        name = f"q{keys}"
        await con.execute("INSERT INTO sluicegate.queue (name) VALUES ($1)", name)
        await con.execute(FILL, name, keys, PAYLOAD, keys, timeout=600)
        bells = "SELECT FROM sluicegate.bell WHERE queue = $1 LIMIT 1"
        while await con.fetch(bells, name):
            merge = "SELECT sluicegate.merge_bells($1, 100000, now())"
            await con.execute(merge, name, timeout=600)
    for table in ("job", "lane", "bell"):
        await con.execute(f"VACUUM ANALYZE sluicegate.{table}", timeout=600)
    await con.close()


def _points(count: int) -> list[int]:
    return [keys for keys in KEYS if keys <= max(count, KEYS[0])]


async def _turn(dsn: str, keys: int, timed: str) -> Took:
    import asyncpg

    con = await asyncpg.connect(dsn)
    try:
        name = f"q{keys}"
        took: dict[str, Took] = {}
        scans = await con.fetchval(SCANS)
        watch = Stopwatch()
        rows: list[Any] = await con.fetch(CLAIM, name, TAKEN, float(LEASE))
        took[CLAIMED] = watch.read()
        assert len(rows) == TAKEN
        leases = [row["r_lease"] for row in rows]
        watch = Stopwatch()
        await con.fetch(
            SETTLE,
            *(name, leases, [row["r_lane"] for row in rows], ["free"] * TAKEN, [None] * TAKEN),
            *(None for _ in range(4)),
            *([row["r_place"] for row in rows], leases),
        )
        took[SETTLED] = watch.read()
        watch = Stopwatch()
        await con.execute(FILL, name, TAKEN, PAYLOAD, TAKEN)
        took[ENQUEUE] = watch.read()
        await con.execute("SELECT pg_stat_force_next_flush()")
        assert await con.fetchval(SCANS) == scans
        return took[timed]
    finally:
        await con.close()


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with postgres_server() as dsn:
        asyncio.run(_fill(dsn, count))
        at = dsn + NO_WAIT
        yield [
            placed(line, keys, partial(_run, at, keys, line), ours=True, items=TAKEN)
            for line in (ENQUEUE, CLAIMED, SETTLED)
            for keys in _points(count)
        ]


def _run(dsn: str, keys: int, line: str) -> Took:
    return asyncio.run(_turn(dsn, keys, line))


CASE = Case(
    name="waiting-keys",
    title="A queue by the number of its waiting keys, 50 jobs at a time",
    prepare=prepare,
    items=KEYS[-1],
    quick_items=KEYS[0],
    unit=US_PER_ITEM,
    turns=5,
    peers=(),
    along="keys",
    is_drawn=False,
)
