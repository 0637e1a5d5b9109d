"""Jobs that cannot be handled: the effect of each strategy, and later jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.postgres.queues.queue_help import Queue, at, payloads, queue

if TYPE_CHECKING:
    from typing import Any

    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

KEYS = pytest.mark.parametrize("key", ["k", None])


async def letters(con: Any, q: Queue) -> list[tuple[str, str, int]]:
    rows = await con.fetch(
        f"SELECT outcome, payload::text, attempts FROM {q.sql}.finished_job WHERE queue = $1"
        " ORDER BY place",
        q.name,
    )
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("poison", ["skip", "park_key"])
async def test_ordering_and_a_strategy_that_goes_on_exclude_each_other(
    log: Log, real_clock: LoopClock, poison: str
) -> None:
    """Q8, Q-T9."""
    async with log.connected() as con:
        with pytest.raises(asyncpg.CheckViolationError):
            await queue(con, log, ordering_required=True, poison=poison)


@KEYS
async def test_a_lost_job_is_given_up_by_the_claim_after_its_last_attempt(
    log: Log, real_clock: LoopClock, key: str | None
) -> None:
    """Q12, Q-T12. No job behind it is lost with it."""
    async with log.connected() as con:
        q = await queue(con, log, poison="skip", max_attempts=2)
        await q.enqueue(con, (key, 1), (key, 2))
        assert payloads(await q.claim(con, loose=1)) == [1, 2][: 2 if key else 1]
        assert payloads(await q.claim(con, loose=1, now=40)) == [1]
        assert await q.claim(con, loose=1, now=80) == []
        assert await letters(con, q) == [("dead", "1", 2)]
        jobs = await q.claim(con, now=81)
        assert [(job.payload, job.attempts) for job in jobs] == [(2, 1)]


@pytest.mark.parametrize("poison", ["block", "block_and_dead_letter"])
async def test_a_poison_job_stops_the_line_until_it_is_unblocked(
    log: Log, real_clock: LoopClock, poison: str
) -> None:
    """Q-T10. There is at most one copy, and none once the job is handled."""
    async with log.connected() as con:
        q = await queue(con, log, ordering_required=True, poison=poison)
        await q.enqueue(con, ("a", 1), ("b", 2), (None, 3))
        copies = [("dead", "1", 3)] if poison != "block" else []
        for now in (0, 1):
            jobs = await q.claim(con, per=1, now=now)
            assert payloads(jobs) == [1]
            assert await q.settle(con, jobs, "fail", attempts=3, now=now) == ["blocked"]
            assert await q.claim(con, now=1000) == []
            assert await letters(con, q) == copies
            assert await q.call(con, "redrive_jobs", None, None, 10) == 0
            assert await q.call(con, "resume_lane", "", False, False, at(now + 1)) == "ready"
        jobs = await q.claim(con, now=2)
        assert payloads(jobs) == [1, 2, 3]
        assert await q.settle(con, jobs, now=2) == ["empty"]
        assert await letters(con, q) == []


async def test_a_kept_job_is_done_although_it_was_a_dead_letter(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T10."""
    async with log.connected() as con:
        q = await queue(con, log, poison="block_and_dead_letter")
        await con.execute(f"UPDATE {q.sql}.queue SET keep_done = '1 day' WHERE name = $1", q.name)
        await q.enqueue(con, ("k", 1))
        await q.settle(con, await q.claim(con), "fail", attempts=3)
        await q.call(con, "resume_lane", "k", False, True, at(0))
        await q.settle(con, await q.claim(con))
        assert [outcome for outcome, *_ in await letters(con, q)] == ["done"]


async def test_the_job_that_failed_is_skipped_and_not_one_that_came_in_front(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con, log.connected() as slow:
        q = await queue(con, log)
        late = slow.transaction()
        await late.start()
        await q.enqueue(slow, ("k", 1))
        await q.enqueue(con, ("k", 2), ("k", 3))
        jobs = await q.claim(con)
        await late.commit()
        assert await q.settle(con, jobs, "fail", attempts=5) == ["parked"]
        assert await q.call(con, "resume_lane", "k", True, False, at(0)) == "dead"
        assert await letters(con, q) == [("dead", "2", 5)]
        assert payloads(await q.claim(con)) == [1, 3]


async def test_a_poison_job_behind_a_handled_one_parks_its_key(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1), ("k", 2), ("k", 3), ("m", 4))
        jobs = await q.claim(con)
        assert await q.settle(con, jobs[:3], "fail", done=1, attempts=5, reason="no") == ["parked"]
        assert payloads(await q.claim(con, now=40)) == [4]
        await q.call(con, "resume_lane", "k", False, False, at(40))
        assert payloads(await q.claim(con, now=40)) == [2, 3]


@KEYS
async def test_a_dead_letter_and_its_job_change_in_one_transaction(
    log: Log, real_clock: LoopClock, key: str | None
) -> None:
    """Q13, Q-T15. A crash before the commit leaves the job without a letter."""
    async with log.connected() as con, log.connected() as worker:
        q = await queue(con, log)
        await q.enqueue(con, (key, 1))
        jobs = await q.claim(worker)
        crash = worker.transaction()
        await crash.start()
        assert await q.settle(worker, jobs, "bury", attempts=1) == ["dead"]
        await con.fetchval("SELECT pg_terminate_backend($1, 9000)", worker.get_server_pid())
        assert await letters(con, q) == []
        jobs = await q.claim(con, now=31)
        assert payloads(jobs) == [1]
        assert await q.settle(con, jobs, "bury", attempts=2, now=31) == ["dead"]
        assert await letters(con, q) == [("dead", "1", 2)]
        assert await q.claim(con, now=1000) == []


@KEYS
async def test_dead_letters_are_enqueued_again_behind_what_waits(
    log: Log, real_clock: LoopClock, key: str | None
) -> None:
    async with log.connected() as con:
        q = await queue(con, log, poison="skip")
        await q.enqueue(con, *((key, n) for n in range(3)))
        for _ in range(2):
            jobs = await q.claim(con, per=1, loose=1)
            assert await q.settle(con, jobs, "fail", attempts=5) == ["dead"]
        assert await q.call(con, "redrive_jobs", key, None, 10) == 2
        assert payloads(await q.claim(con)) == [2, 0, 1]
        assert await letters(con, q) == []


async def test_blocked_jobs_without_a_key_stop_nothing(log: Log, real_clock: LoopClock) -> None:
    async with log.connected() as con:
        q = await queue(con, log, poison="block_and_dead_letter")
        await q.enqueue(con, (None, 1), (None, 2))
        (job, _) = jobs = await q.claim(con)
        assert await q.settle(con, jobs, "fail", attempts=5) == ["blocked", "blocked"]
        assert await q.claim(con, now=1000) == []
        assert await q.call(con, "retry_jobs", [job.place]) == (job.place, "ready")
        assert await q.settle(con, await q.claim(con)) == ["empty"]
        assert await letters(con, q) == [("dead", "2", 5)]
        await q.call(con, "cancel_jobs", [job.place + 1])
        assert await q.count(con, "job") == 0
        assert await letters(con, q) == [("cancelled", "2", 5)]
