"""The data that claims and settles read, whatever waits: counted in buffers, with tables that were
never analyzed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.queue_help import Queue, at, queue

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

TABLES = ["job", "lane", "bell", "finished_job", "queueing_lock"]


async def filled(con: Any, log: Log, jobs: int) -> Queue:
    """A queue of this many jobs, half of them of one key, whose bells are merged."""
    await con.execute(f"ALTER TABLE {log.sql}.job SET (autovacuum_enabled = off)")
    q = await queue(con, log)
    await con.execute(
        f"INSERT INTO {log.sql}.job (queue, key, payload) SELECT $1::text,"
        " CASE WHEN n % 2 = 0 THEN 'hot' ELSE 'k' || n END, to_jsonb(n)"
        " FROM generate_series(1, $2::int) n",
        q.name,
        jobs,
    )
    while await q.count(con, "bell"):
        await con.execute(f"SELECT {log.sql}.merge_bells($1, 100000, $2)", q.name, at(0))
    await con.execute(f"VACUUM {log.sql}.bell")  # as autovacuum does
    return q


async def buffers(con: Any, q: Queue, lanes: int, per: int, now: float = 0) -> int:
    """The buffers that a claim reads."""
    (plan,) = json.loads(
        await con.fetchval(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
            f" SELECT * FROM {q.sql}.claim_jobs($1, 'g', 'one', $2, $3, 10, 30, $4)",
            *(q.name, lanes, per, at(now)),
        )
    )
    assert plan["Plan"]["Actual Rows"] >= lanes
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


async def median(con: Any, q: Queue, lanes: int = 20, per: int = 5) -> int:
    return sorted([await buffers(con, q, lanes, per) for _ in range(7)])[3]


async def sequential_scans(con: Any, log: Log) -> dict[str, int]:
    await con.execute("SELECT pg_stat_force_next_flush()")
    rows = await con.fetch(
        "SELECT relname, seq_scan FROM pg_stat_user_tables"
        " WHERE schemaname = $1 AND relname = ANY ($2::text[]::name[])",
        log.schema,
        TABLES,
    )
    return {row["relname"]: row["seq_scan"] for row in rows}


async def settle_all(con: Any, q: Queue, lanes: int, per: int, count: int) -> None:
    """Claim and settle this many jobs."""
    done = 0
    while done < count:
        jobs = await q.claim(con, lanes=lanes, per=per)
        assert jobs
        await q.settle(con, jobs)
        done += len(jobs)


@pytest.mark.parametrize(
    "jobs", [50_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
async def test_a_claim_reads_as_much_of_a_long_queue_as_of_a_short_one(
    log: Log, real_clock: LoopClock, jobs: int
) -> None:
    """Half of the jobs are of one key. Neither a claim nor a settle scans a whole table."""
    async with log.connected() as con:
        short = await filled(con, log, 1000)
        await settle_all(con, short, 20, 5, 100)
        few = await median(con, short)
        long = await filled(con, log, jobs)
        before = await sequential_scans(con, log)
        await settle_all(con, long, 20, 5, 100)
        many = await median(con, long)
        assert await sequential_scans(con, log) == before
        assert many <= 2 * few, (few, many)


@pytest.mark.parametrize(
    "lanes",
    [
        20_000,
        pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
        pytest.param(10_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
async def test_a_claim_does_not_read_keys_that_back_off_or_are_parked(
    log: Log, real_clock: LoopClock, lanes: int
) -> None:
    async with log.connected() as con:
        q = await filled(con, log, 1000)
        few = await median(con, q)
        await con.execute(
            f"INSERT INTO {log.sql}.lane (queue, key, slot, sticky, priority, due, state)"
            " SELECT $1::text, 'later ' || n, n % 65536, false, n % 3, $2::timestamptz, n % 5 / 4 * 2"
            " FROM generate_series(1, $3::int) n",
            *(q.name, at(1000), lanes),
        )
        many = await median(con, q)
        assert many <= 2 * few, (few, many)


async def test_a_claim_does_not_visit_each_priority(log: Log, real_clock: LoopClock) -> None:
    """Lanes that back off have 20,000 different priorities above that of the ready ones."""
    async with log.connected() as con:
        await con.execute(f"ALTER TABLE {log.sql}.lane SET (autovacuum_enabled = off)")
        for sticky in (False, True):
            q = await queue(con, log, sticky=sticky)
            await q.assign(con, (0, 65535, "one"))
            await con.execute(
                f"INSERT INTO {log.sql}.job (queue, key, payload, priority)"
                " SELECT $1::text, 'k' || n, to_jsonb(n), -n % 3 - 1 FROM generate_series(1, 500) n",
                q.name,
            )
            few = await median(con, q)
            await con.execute(
                f"INSERT INTO {log.sql}.lane (queue, key, slot, sticky, priority, due)"
                " SELECT $1::text, 'later ' || n, n % 65536, $2, n, $3::timestamptz"
                " FROM generate_series(1, 20000) n",
                *(q.name, sticky, at(1000)),
            )
            many = await median(con, q)
            assert many <= 2 * few + 500, (few, many)
            jobs = await q.claim(con, lanes=500, per=1)
            assert jobs == sorted(jobs, key=lambda job: job.payload % 3)


async def test_a_settle_reads_as_much_for_each_lease_however_many_there_are(
    log: Log, real_clock: LoopClock
) -> None:
    """With the statistics of a drained queue, as before a burst of jobs."""
    async with log.connected() as con:
        q = await queue(con, log)
        await con.execute(f"ALTER TABLE {log.sql}.lane SET (autovacuum_enabled = off)")
        jobs = [(f"k{n}", n) for n in range(440)]
        await q.enqueue(con, *jobs)
        await settle_all(con, q, 100, 1, 440)
        await con.execute(f"ANALYZE {log.sql}.lane")
        await q.enqueue(con, *jobs)
        few, many = [await settle_buffers(con, q, lanes) / lanes for lanes in (40, 400)]
        assert many <= 1.3 * few, (few, many)


async def settle_buffers(con: Any, q: Queue, lanes: int) -> int:
    """The buffers read by a settle that frees the leases of this many keys."""
    jobs = await q.claim(con, lanes=lanes, per=1)
    assert len(jobs) == lanes
    nothing: list[Any] = [None] * lanes
    leases, places = [job.lease for job in jobs], [job.place for job in jobs]
    (plan,) = json.loads(
        await con.fetchval(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM "
            f"{q.sql}.settle_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $5, $2, $10)",
            *(q.name, leases, [job.lane for job in jobs], ["free"] * lanes, places),
            *(nothing, nothing, nothing, nothing, at(0)),
        )
    )
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


async def test_an_old_snapshot_does_not_make_a_hot_key_slow(
    log: Log, real_clock: LoopClock
) -> None:
    """A dump or a long report keeps the rows of handled jobs: they are not read again.

    It also keeps the versions of the lane, two per claim. This cannot be avoided: an update of the
    row examines each version because of its primary key.
    """
    async with log.connected() as con, log.connected() as dump:
        q = await queue(con, log)
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, key, payload)"
            " SELECT $1::text, 'hot', to_jsonb(n) FROM generate_series(1, 31000) n",
            q.name,
        )
        await settle_all(con, q, 1, 100, 100)
        async with dump.transaction(isolation="repeatable_read"):
            await dump.fetchval(f"SELECT count(*) FROM {log.sql}.queue")
            jobs_before, before = await of_jobs(con, q)
            await give_back(con, q)
            await settle_all(con, q, 1, 500, 29_500)
            jobs_after, after = await of_jobs(con, q)
            assert jobs_after <= 3 * jobs_before, (jobs_before, jobs_after)
            claims = 60
            assert after <= 3 * before + 2 * claims, (before, after)


async def of_jobs(con: Any, q: Queue) -> tuple[int, int]:
    """The job and index buffers read by a claim of the hot key, and all its buffers."""

    async def read() -> int:
        await con.execute("SELECT pg_stat_force_next_flush()")
        return int(
            await con.fetchval(
                "SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read"
                " FROM pg_statio_user_tables WHERE schemaname = $1 AND relname = 'job'",
                q.log.schema,
            )
        )

    begin = await read()
    total = await buffers(con, q, 1, 100)
    return await read() - begin, total


async def give_back(con: Any, q: Queue) -> None:
    """End the lease of a measured claim."""
    row = await con.fetchrow(
        f"SELECT key, lease, head FROM {q.sql}.lane WHERE queue = $1 AND lease IS NOT NULL", q.name
    )
    await con.execute(
        f"SELECT {q.sql}.settle_jobs($1, $2, $3, '{{free}}', $4,"
        " '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{}', '{}', $5)",
        *(q.name, [row["lease"]], [row["key"]], [row["head"]], at(0)),
    )
