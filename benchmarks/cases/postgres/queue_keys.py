"""The cost of an enqueue, a claim and a settle in a queue with up to a million keys that wait, and
the pages that they read.

Each key has one job, or ten. The queues are filled once by one statement each; a turn settles the
jobs of 50 keys, and enqueues as many. A turn that scans a table fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...destination import NO_WAIT, postgres_server
from ...harness import US_PER_ITEM, Case, Unit, placed
from ...postgres.queues.lanes import FILL, SETTLE, Lanes
from ...postgres.queues.ways import LEASE, PAYLOAD
from ...stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...harness import Contender
    from ...stopwatch import Took

KEYS = (1_000, 10_000, 100_000, 1_000_000)
JOBS = (1, 10)
"""Jobs of each key."""
TAKEN = 50
CLAIM = "SELECT * FROM sluicegate.claim_jobs($1, 'default', 'benchmark', $2, $3, 0, $4)"
READ = """SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint
FROM pg_statio_user_tables WHERE schemaname = 'sluicegate'"""
SCANS = """SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables
WHERE schemaname = 'sluicegate' AND relname IN ('job', 'lane')"""
ENQUEUE = "enqueue"
CLAIMED, SETTLED = "claim", "settle"


def _points(count: int) -> list[tuple[int, int]]:
    """Return the queues: the keys of each, and the jobs of each key."""
    return [
        (keys, per) for per in JOBS for keys in KEYS if keys * per <= max(count, KEYS[0] * JOBS[-1])
    ]


async def _fill(dsn: str, count: int) -> None:
    import asyncpg

    await Lanes().install(dsn)
    con = await asyncpg.connect(dsn)
    for keys, per in _points(count):
        name = f"q{keys}x{per}"
        await con.execute("INSERT INTO sluicegate.queue (name) VALUES ($1)", name)
        await con.execute(FILL, name, keys, PAYLOAD, keys * per, timeout=600)
        bells = "SELECT FROM sluicegate.bell WHERE queue = $1 LIMIT 1"
        while await con.fetch(bells, name):
            merge = "SELECT sluicegate.merge_bells($1, 100000, now())"
            await con.execute(merge, name, timeout=600)
    for table in ("job", "lane", "bell"):
        await con.execute(f"VACUUM ANALYZE sluicegate.{table}", timeout=600)
    await con.close()


async def _turn(dsn: str, keys: int, per: int) -> tuple[dict[str, Took], dict[str, int]]:
    """Return the time of each step, and the pages that it has read."""
    import asyncpg

    con = await asyncpg.connect(dsn)
    took: dict[str, Took] = {}
    pages: dict[str, int] = {}

    async def read() -> int:
        await con.execute("SELECT pg_stat_force_next_flush()")
        return int(await con.fetchval(READ))

    async def step(name: str, *call: Any) -> list[Any]:
        before = await read()
        watch = Stopwatch()
        rows: list[Any] = await con.fetch(*call)
        took[name] = watch.read()
        pages[name] = await read() - before
        return rows

    try:
        name = f"q{keys}x{per}"
        scans = await con.fetchval(SCANS)
        rows = await step(CLAIMED, CLAIM, name, TAKEN, per, float(LEASE))
        assert len(rows) == TAKEN * per
        leases = {row["r_lease"]: row["r_lane"] for row in rows}
        await step(
            SETTLED,
            SETTLE,
            *(name, [*leases], [*leases.values()], ["free"] * TAKEN, [None] * TAKEN),
            *(None for _ in range(4)),
            *([row["r_place"] for row in rows], [row["r_lease"] for row in rows]),
        )
        await step(ENQUEUE, FILL, name, TAKEN, PAYLOAD, TAKEN * per)
        await con.execute("SELECT pg_stat_force_next_flush()")
        assert await con.fetchval(SCANS) == scans
        return took, pages
    finally:
        await con.close()


def _run(dsn: str, keys: int, per: int, line: str) -> Took:
    return asyncio.run(_turn(dsn, keys, per))[0][line]


def _read(dsn: str, keys: int, per: int, line: str) -> float:
    return asyncio.run(_turn(dsn, keys, per))[1][line]


@contextlib.contextmanager
def _prepare(count: int, run: Callable[..., Took | float]) -> Iterator[Sequence[Contender]]:
    with postgres_server() as dsn:
        asyncio.run(_fill(dsn, count))
        at = dsn + NO_WAIT
        yield [
            placed(
                f"{line}, {per} per key",
                keys,
                partial(run, at, keys, per, line),
                ours=True,
                items=TAKEN * per,
            )
            for line in (ENQUEUE, CLAIMED, SETTLED)
            for keys, per in _points(count)
        ]


CASE = Case(
    name="waiting-keys",
    title="A queue by the number of its waiting keys, the jobs of 50 keys at a time",
    prepare=partial(_prepare, run=_run),
    items=KEYS[-1],
    quick_items=KEYS[0],
    unit=US_PER_ITEM,
    turns=5,
    peers=(),
    along="keys",
    is_drawn=False,
)
PAGES = replace(
    CASE,
    name="waiting-keys-pages",
    title="Pages of 8 KiB read per job, by the number of waiting keys",
    prepare=partial(_prepare, run=_read),
    unit=Unit("pages per job", 1.0, of_time=False),
)
