"""Leases: fencing, expiry, the count of attempts, and the ways a lease ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.queue_help import at, payloads, queue

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

KEYS = pytest.mark.parametrize("key", ["k", None])


@KEYS
async def test_a_lease_that_has_ended_settles_nothing(
    log: Log, real_clock: LoopClock, key: str | None
) -> None:
    """Q10, Q-T13. Whether or not another consumer has a lease by now."""
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, (key, 1))
        first = await q.claim(con)
        for action in ("free", "nak", "fail", "bury", "keep"):
            assert await q.settle(con, first, action, now=30, attempts=1) == ["lost"]
        assert await q.extend(con, first, now=30) == set()
        (again,) = second = await q.claim(con, "two", now=30)
        assert again.payload == 1
        for action in ("free", "nak", "fail", "bury", "keep"):
            assert await q.settle(con, first, action, now=40, attempts=1) == ["lost"]
        assert await q.extend(con, first, now=40) == set()
        assert await q.extend(con, second, now=40) == {again.lease}
        assert await q.settle(con, second, now=69) == ["empty"]
        assert await q.settle(con, second, now=69) == ["lost"]


@KEYS
async def test_a_lease_ends_at_its_time_and_no_earlier(
    log: Log, real_clock: LoopClock, key: str | None
) -> None:
    """Q10, Q11, Q-T2. No sweeper is needed."""
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, (key, 1))
        jobs = await q.claim(con)
        await q.extend(con, jobs, seconds=10, now=25)
        assert await q.claim(con, "two", now=34.9) == []
        assert payloads(await q.claim(con, "two", now=35)) == [1]


@KEYS
async def test_attempts_count_leases_and_neither_extensions_nor_jobs_given_back(
    log: Log, real_clock: LoopClock, key: str | None
) -> None:
    """Q-T12. Across connections, too: the count is in the table."""
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, (key, 1))
        (job,) = jobs = await q.claim(con)
        assert job.attempts == 1
        await q.extend(con, jobs, now=10)
        await q.settle(con, jobs, done=0, now=10)
    async with log.connected() as con:
        (job,) = await q.claim(con, now=10)
        assert job.attempts == 1
        (job,) = await q.claim(con, now=50)
        assert job.attempts == 2
    async with log.connected() as con:
        (job,) = jobs = await q.claim(con, now=90)
        assert job.attempts == 3
        assert await q.settle(con, jobs, "nak", now=91, delay=5, attempts=3) == ["waiting"]
        assert await q.claim(con, now=95) == []
        (job,) = await q.claim(con, now=96)
        assert job.attempts == 4


async def test_a_job_behind_a_handled_one_has_its_own_attempts(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T12. The lease that continues counts for it and is lost with it."""
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1), ("k", 2), ("k", 3))
        jobs = await q.claim(con)
        assert await q.settle(con, jobs, "keep", done=1) == ["kept"]
        (job,) = jobs = await q.claim(con, now=40)
        assert (job.payload, job.attempts) == (2, 2)
        assert await q.settle(con, jobs, now=40) == ["freed"]
        (job,) = await q.claim(con, now=40)
        assert (job.payload, job.attempts) == (3, 1)


async def test_a_late_job_in_front_has_not_the_attempts_of_the_one_behind(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T12. Job 2 is tried and backs off; then job 1 is in front of it and is not poison."""
    async with log.connected() as con, log.connected() as slow:
        q = await queue(con, log, max_attempts=1)
        late = slow.transaction()
        await late.start()
        await q.enqueue(slow, ("k", 1))
        await q.enqueue(con, ("k", 2))
        jobs = await q.claim(con)
        await late.commit()
        assert await q.settle(con, jobs, "nak", attempts=1, delay=0) == ["waiting"]
        (job,) = jobs = await q.claim(con)
        assert (job.payload, job.attempts) == (1, 1)
        assert await q.settle(con, jobs) == ["freed"]
        assert [(job.payload, job.attempts) for job in await q.claim(con)] == [(2, 1)]


async def test_a_lease_lost_while_a_late_job_came_counts_for_its_own_job(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con, log.connected() as slow:
        q = await queue(con, log, max_attempts=1)
        late = slow.transaction()
        await late.start()
        await q.enqueue(slow, ("k", 1))
        await q.enqueue(con, ("k", 2))
        await q.claim(con)
        await late.commit()
        (job,) = await q.claim(con, now=31)
        assert (job.payload, job.attempts) == (1, 1)


async def test_expired_lanes_do_not_starve_behind_a_backlog(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1))
        await q.claim(con)
        await q.enqueue(con, *((f"other {n}", n) for n in range(50)), priority=5)
        assert payloads(await q.claim(con, lanes=1, now=31)) == [1]


async def test_a_lane_parked_while_it_is_leased_is_not_given_out_when_the_lease_is_lost(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1))
        jobs = await q.claim(con)
        assert await q.call(con, "park_lane", "k", "wish", at(1)) == "leased"
        for now in (31, 32):
            assert await q.claim(con, now=now) == []
        assert (
            await con.fetchval(f"SELECT lease FROM {q.sql}.lane WHERE queue = $1", q.name) is None
        )
        assert await q.settle(con, jobs, now=32) == ["lost"]
        assert await q.call(con, "resume_lane", "k", False, False, at(33)) == "ready"
        assert payloads(await q.claim(con, now=33)) == [1]


async def test_a_lane_parked_while_it_is_leased_stays_parked_when_its_jobs_are_done(
    log: Log, real_clock: LoopClock
) -> None:
    """A lane without jobs is neither dropped nor waited for."""
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1))
        jobs = await q.claim(con)
        await q.call(con, "park_lane", "k", "wish", at(1))
        assert await q.settle(con, jobs, now=2) == ["freed"]
        assert await q.call(con, "park_lane", "idle", "wish", at(1)) == "parked"
        await q.enqueue(con, ("k", 2), ("idle", 3))
        assert await q.claim(con, now=2) == []
        for key in ("k", "idle"):
            assert await q.call(con, "resume_lane", key, False, False, at(3)) == "ready"
        assert payloads(await q.claim(con, now=3)) == [2, 3]


async def test_a_job_is_not_skipped_while_it_is_handled(log: Log, real_clock: LoopClock) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1), ("k", 2))
        jobs = await q.claim(con, per=1)
        await q.call(con, "park_lane", "k", "wish", at(1))
        assert await q.call(con, "resume_lane", "k", True, False, at(2)) == "leased"
        assert await q.settle(con, jobs, now=2) == ["freed"]
        assert await q.call(con, "resume_lane", "k", True, False, at(2)) == "dead"
        assert await q.claim(con, now=2) == []


async def test_a_clock_that_is_set_back_loses_and_overtakes_nothing(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1), ("k", 2))
        jobs = await q.claim(con, now=1000)
        assert await q.claim(con, "two", now=0) == []
        assert await q.extend(con, jobs, now=0) == {jobs[0].lease}
        assert payloads(again := await q.claim(con, "two", now=30)) == [1]
        assert await q.settle(con, jobs, now=0) == ["lost"]
        assert await q.settle(con, again, now=0) == ["freed"]
        assert payloads(await q.claim(con, now=0)) == [2]


async def test_a_lane_whose_jobs_are_gone_is_given_out_again_when_others_come(
    log: Log, real_clock: LoopClock
) -> None:
    """A claim that finds no job in a lane does not keep the lane."""
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1), ("m", 2))
        assert payloads(await q.claim(con, lanes=1)) == [1]
        await con.execute(f"DELETE FROM {q.sql}.job WHERE key = 'm'")  # manually
        assert await q.claim(con) == []
        await q.enqueue(con, ("m", 3))
        assert payloads(await q.claim(con)) == [3]


async def test_numbers_of_leases_rise_although_their_sequence_is_set_back(
    log: Log, real_clock: LoopClock
) -> None:
    """Claims commit asynchronously, so a server crash may set back the sequence."""
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1))
        (first,) = await q.claim(con)
        await con.execute(f"ALTER SEQUENCE {q.sql}.job_lease RESTART")
        (second,) = await q.claim(con, now=31)
        assert second.lease > first.lease
        assert await q.settle(con, [first], now=32) == ["lost"]
