"""The order of a key's jobs in any order of commits, and a single holder of a key at a time."""

# schema names, quoted

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from tests.postgres.queues.queue_help import payloads, queue, waits_for_a_lock

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock


async def test_a_late_job_of_a_free_lane_comes_before_those_that_wait(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T11. Its place is lower than one that the lane has already passed."""
    async with log.connected() as con, log.connected() as slow:
        q = await queue(con, log)
        late = slow.transaction()
        await late.start()
        await q.enqueue(slow, ("k", 1))
        await q.enqueue(con, ("k", 2), ("k", 3))
        assert await q.settle(con, await q.claim(con, per=1)) == ["freed"]
        await late.commit()
        await q.enqueue(con, ("k", 4))
        assert payloads(await q.claim(con)) == [1, 3, 4]


async def test_a_late_job_of_a_leased_lane_is_given_out_next(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T11. Also if its bell is merged while the lane is leased, and the lane advances."""
    async with log.connected() as con, log.connected() as slow:
        q = await queue(con, log)
        late = slow.transaction()
        await late.start()
        await q.enqueue(slow, ("k", 1))
        await q.enqueue(con, ("k", 2), ("k", 3))
        jobs = await q.claim(con, per=1)
        await late.commit()
        assert await q.claim(con, "other") == []
        assert await q.settle(con, jobs, "keep") == ["kept"]
        assert await q.settle(con, jobs, done=0) == ["freed"]
        assert payloads(await q.claim(con)) == [1, 3]


async def test_a_lane_is_read_from_before_bells_that_are_left(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T11. With a backlog of bells of other keys in front, job 3 is seen before the bell of 1."""
    async with log.connected() as con, log.connected() as many, log.connected() as slow:
        q = await queue(con, log)
        backlog, late = many.transaction(), slow.transaction()
        await backlog.start()
        await late.start()
        await q.enqueue(many, *((f"other {n}", 0) for n in range(1000)))
        await q.enqueue(slow, ("k", 1), priority=9)
        await q.enqueue(con, ("k", 2), ("k", 4), priority=9)
        assert await q.settle(con, await q.claim(con, per=1)) == ["freed"]
        await backlog.commit()
        await late.commit()
        await q.enqueue(con, ("k", 3), priority=9)
        assert payloads(await q.claim(con, lanes=1)) == [1, 4, 3]


async def test_a_job_that_commits_amid_a_claim_waits_for_the_one_before_it(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T11. Jobs 1 and 3 commit, in order, after a claim has merged bells but before it reads
    jobs.
    """
    async with log.connected() as con, log.connected() as slow, log.connected() as claims:
        q = await queue(con, log, max_in_flight=100)
        late = slow.transaction()
        await late.start()
        await q.enqueue(slow, ("k", 1))
        await q.enqueue(con, ("k", 2), ("k", 4))
        assert await q.settle(con, await q.claim(con, per=1)) == ["freed"]
        async with con.transaction():  # with a limit, a claim waits here, behind its bells
            await con.execute(f"SELECT FROM {log.sql}.queue WHERE name = $1 FOR UPDATE", q.name)
            claim = asyncio.create_task(q.claim(claims))
            await waits_for_a_lock(log, claims)
            await late.commit()
            await q.enqueue(slow, ("k", 3))
        assert payloads(await claim) == [1, 4, 3]


async def test_no_claim_waits_for_a_transaction_that_has_settled(
    log: Log, real_clock: LoopClock
) -> None:
    """The bells of its key wait for it as one; those of other keys do not."""
    async with log.connected() as con, log.connected() as user:
        q = await queue(con, log)
        await q.enqueue(con, ("k", 1))
        jobs = await q.claim(con)
        settled = user.transaction()
        await settled.start()
        assert await q.settle(user, jobs) == ["empty"]
        for number in (2, 3, 4):
            await q.enqueue(con, ("a", number), ("k", number), ("z", number))
        await con.execute("SET lock_timeout = '1s'")
        assert {job.key for job in await q.claim(con)} == {"a", "z"}
        assert await q.count(con, "bell") == 1
        await settled.commit()
        assert payloads(await q.claim(con)) == [2, 3, 4]


async def test_claims_at_once_give_out_no_key_twice(log: Log, real_clock: LoopClock) -> None:
    """Q7, R7, Q-T8, Q-T11. The lease of the first is not committed when the second claims."""
    async with log.connected() as con, log.connected() as first, log.connected() as second:
        for settings in ({}, {"ordering_required": True, "poison": "block"}):
            q = await queue(con, log, **settings)
            await q.enqueue(con, ("k", 1), ("k", 2))
            pending = first.transaction()
            await pending.start()
            assert payloads(await q.claim(first)) == [1, 2]
            assert await q.claim(second, "two") == []
            await pending.rollback()
            assert payloads(await q.claim(second, "two")) == [1, 2]
            assert await q.claim(first) == []


async def test_new_keys_are_merged_by_several_claims_at_once(
    log: Log, real_clock: LoopClock
) -> None:
    async with AsyncExitStack() as stack:
        cons = [await stack.enter_async_context(log.connected()) for _ in range(4)]
        q = await queue(cons[0], log)
        for start in range(0, 400, 50):
            await q.enqueue(cons[0], *((f"k{n % 100}", n) for n in range(start, start + 50)))
        seen: dict[str | None, list[int]] = {}

        async def work(con: Any, name: str) -> None:
            while jobs := await q.claim(con, name, lanes=7, per=3):
                for job in jobs:
                    seen.setdefault(job.key, []).append(job.payload)
                assert "lost" not in await q.settle(con, jobs, waits=True)

        for _ in range(5):
            await asyncio.gather(*(work(con, f"w{n}") for n, con in enumerate(cons)))
        assert seen == {f"k{n}": [n, n + 100, n + 200, n + 300] for n in range(100)}
        assert await q.count(cons[0], "lane") == 0
