"""Priorities, delays, rates, limits, and purged jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.postgres.queues.queue_help import at, payloads, queue, waits_for_a_lock

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock


async def test_keys_of_a_higher_priority_come_first(log: Log, real_clock: LoopClock) -> None:
    """Within a priority, the key that has waited longest."""
    async with log.connected() as con:
        q = await queue(con, log)
        for number, (key, priority) in enumerate(
            [("a", 0), ("b", -5), ("c", 9), ("d", 9), (None, 1), (None, 2)]
        ):
            await q.enqueue(con, (key, number), priority=priority)
            await q.claim(con, lanes=0, loose=0, now=number)
        found = [payloads(await q.claim(con, lanes=1, loose=n % 2, now=9)) for n in range(1, 5)]
        assert found == [[2, 5], [3], [0, 4], [1]]


async def test_a_job_of_a_higher_priority_pulls_its_key(log: Log, real_clock: LoopClock) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("a", 1), ("b", 2))
        await q.enqueue(con, ("b", 3), priority=5)
        assert payloads(await q.claim(con, lanes=1)) == [2, 3]


@pytest.mark.parametrize("key", ["k", None])
async def test_a_delayed_job_stalls_nothing_and_enters_behind_the_waiting(
    log: Log, real_clock: LoopClock, key: str | None
) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, (key, 1), due=at(10))
        await q.enqueue(con, (key, 2))
        assert payloads(await q.claim(con, now=1)) == [2]
        await q.enqueue(con, (key, 3))
        await q.settle(con, await q.claim(con, now=40, loose=1, per=1), now=40)
        assert set(payloads(await q.claim(con, now=40))) >= {1, 3}
        assert await q.count(con, "bell") == 0


async def test_a_delayed_job_of_an_ordered_queue_stalls_nothing(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        q = await queue(con, log, ordering_required=True, poison="block")
        await q.enqueue(con, ("a", 1), due=at(10))
        await q.enqueue(con, ("b", 2), (None, 3))
        assert await q.settle(con, await q.claim(con, per=1)) == ["freed"]
        assert payloads(await q.claim(con, now=10)) == [3, 1]


async def test_jobs_of_a_key_start_no_faster_than_its_rate(log: Log, real_clock: LoopClock) -> None:
    """Also if the key has no jobs for a while, or a job backs off for less."""
    async with log.connected() as con:
        q = await queue(con, log, key_rate=0.1)
        await q.enqueue(con, ("k", 1))
        jobs = await q.claim(con)
        assert await q.settle(con, jobs, now=1) == ["freed"]
        await q.enqueue(con, ("k", 2), ("k", 3))
        assert await q.claim(con, now=9) == []
        jobs = await q.claim(con, now=10)
        assert payloads(jobs) == [2]
        assert await q.settle(con, jobs, "nak", delay=1, attempts=1, now=11) == ["waiting"]
        assert await q.claim(con, now=19) == []
        jobs = await q.claim(con, now=20)
        assert payloads(jobs) == [2]
        assert await q.settle(con, jobs, now=21) == ["freed"]
        jobs = await q.claim(con, now=30)
        assert payloads(jobs) == [3]
        await q.settle(con, jobs, now=31)
        assert await q.claim(con, now=100) == []
        assert await q.count(con, "lane") == 0


async def test_no_more_leases_than_the_cap_whoever_claims(log: Log, real_clock: LoopClock) -> None:
    """Q16: concurrent claims take turns, and expired leases make room."""
    async with log.connected() as con, log.connected() as slow, log.connected() as other:
        q = await queue(con, log, max_in_flight=3)
        await q.enqueue(con, *((f"k{n}", n) for n in range(5)), (None, 5), (None, 6))
        pending = slow.transaction()
        await pending.start()
        assert len(await q.claim(slow, lanes=2)) == 3
        second = asyncio.create_task(q.claim(other))
        await waits_for_a_lock(log, other)
        await pending.commit()
        assert await second == []
        assert len(await q.claim(con, now=30)) == 3


async def test_a_full_queue_takes_no_more(log: Log, real_clock: LoopClock) -> None:
    """Q16."""
    async with log.connected() as con:
        q = await queue(con, log, max_depth=2)
        await q.enqueue(con, ("k", 1), ("k", 2))
        with pytest.raises(asyncpg.PostgresError, match="is full") as raised:
            await q.enqueue(con, ("k", 3))
        assert raised.value.sqlstate == "PS011"
        await q.settle(con, await q.claim(con), done=1)
        await q.enqueue(con, ("k", 3))
        assert payloads(await q.claim(con)) == [2, 3]


async def test_a_paused_queue_gives_out_nothing_and_takes_jobs(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        q = await queue(con, log, paused=True)
        await q.enqueue(con, ("k", 1))
        assert await q.claim(con) == []
        await con.execute(f"UPDATE {q.sql}.queue SET paused = false WHERE name = $1", q.name)
        assert payloads(await q.claim(con)) == [1]


async def test_waiting_jobs_are_purged_and_leased_ones_are_not(
    log: Log, real_clock: LoopClock
) -> None:
    """Bells and lanes of purged jobs give out nothing."""
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("leased", 1), (None, 2))
        jobs = await q.claim(con)
        await q.enqueue(con, ("leased", 3), ("waiting", 4), ("waiting", 5), (None, 6))
        assert await q.call(con, "purge_waiting", "waiting", 1, at(0)) == 1
        assert await q.call(con, "purge_waiting", None, 100, at(0)) == 2
        assert await q.claim(con) == []
        assert await q.settle(con, jobs) == ["freed", "empty"]
        jobs = await q.claim(con)
        assert payloads(jobs) == [3]
        assert await q.call(con, "purge_waiting", None, 100, at(30)) == 1
        assert await q.claim(con, now=30) == []
        await q.enqueue(con, ("leased", 7), ("waiting", 8))
        assert sorted(payloads(await q.claim(con, now=30))) == [7, 8]


@pytest.mark.parametrize("change", ["ordering_required = true, poison = 'block'", "sticky = true"])
async def test_settings_that_lanes_depend_on_stay_while_there_are_jobs(
    log: Log, real_clock: LoopClock, change: str
) -> None:
    """Otherwise jobs of one key would have two lanes, or a lane that no claim finds."""
    async with log.connected() as con, log.connected() as slow:
        q = await queue(con, log)
        update = f"UPDATE {q.sql}.queue SET {change} WHERE name = $1"
        async with slow.transaction():
            await q.enqueue(slow, ("k", 1))
            changing = asyncio.create_task(con.execute(update, q.name))
            await waits_for_a_lock(log, con)
        with pytest.raises(asyncpg.ObjectInUseError, match="has jobs"):
            await changing
        await con.execute(f"UPDATE {q.sql}.queue SET max_depth = 9 WHERE name = $1", q.name)
        assert await q.settle(con, await q.claim(con)) == ["empty"]
        await con.execute(update, q.name)
        await q.enqueue(con, ("k", 2))
