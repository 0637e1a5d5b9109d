"""Rows that another session has locked delay their key only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.queue_help import LEASE, at, payloads, queue

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

FATES = {
    "free": "empty",
    "keep": "kept",
    "nak": "waiting",
    "fail": "parked",
    "bury": "dead",
}


@pytest.mark.parametrize(
    ("key", "action"),
    [
        ("k", "free"),
        (None, "free"),
        *[
            pytest.param(key, action, marks=pytest.mark.long)
            for key in ("k", None)
            for action in ("keep", "nak", "fail", "bury")
        ],
    ],
)
async def test_a_locked_lease_is_neither_settled_nor_lost_and_others_are_settled(
    log: Log, real_clock: LoopClock, key: str | None, action: str
) -> None:
    """A lease that has ended is lost, whether or not its row is locked."""
    table = "job" if key is None else "lane"
    async with log.connected() as con, log.connected() as operator:
        q = await queue(con, log)
        await con.execute("SET statement_timeout = '5s'")
        await q.enqueue(con, (key, 1), *([("other", 2), (None, 3)]))
        jobs = await q.claim(con)
        (job,) = [each for each in jobs if each.payload == 1]
        rest = [each for each in jobs if each is not job]
        row = f"SELECT * FROM {log.sql}.{table} WHERE queue = $1 AND lease = $2"
        before = await con.fetchrow(row, q.name, job.lease)
        async with operator.transaction():
            await operator.fetch(f"{row} FOR UPDATE", q.name, job.lease)
            assert await q.extend(con, jobs) == {each.lease for each in rest}
            fates = await q.settle(con, jobs, action, attempts=1, delay=0)
            assert sorted(fates) == sorted(["locked", *[_fate(action, each.lane) for each in rest]])
            assert await q.settle(con, [job], action, attempts=1, now=30) == ["lost"]
            with pytest.raises(Exception, match="lock timeout"):
                await q.settle(con, [job], action, attempts=1, delay=0, waits=True)
            assert await con.fetchrow(row, q.name, job.lease) == before
        assert await q.extend(con, [job]) == {job.lease}
        fates = await q.settle(con, [job], action, attempts=1, delay=0, waits=True)
        assert fates == [_fate(action, key)]


def _fate(action: str, lane: str | None) -> str:
    return FATES[action]


async def test_a_lane_of_an_open_transaction_delays_the_claims_of_its_key_only(
    log: Log, real_clock: LoopClock
) -> None:
    """Such as one that parks a key without jobs: jobs that come meanwhile wait for its end."""
    async with log.connected() as con, log.connected() as operator:
        q = await queue(con, log)
        await con.execute("SET statement_timeout = '5s'")
        for ends_by in ("ROLLBACK", "COMMIT"):
            await operator.execute("BEGIN")
            assert await q.call(operator, "park_lane", "new", "why") == "parked"
            keys = ["a", "b", "new", "z"]
            await q.enqueue(con, *[(key, key) for key in keys])
            await q.enqueue(con, ("new", "new"))
            jobs = await q.claim(con)
            assert [job.key for job in jobs] == ["a", "b", "z"]
            assert await q.count(con, "bell") == 1
            await q.settle(con, jobs)
            await operator.execute(ends_by)
            jobs = await q.claim(con)
            assert [job.key for job in jobs] == ["new", "new"] * (ends_by == "ROLLBACK")
            await q.settle(con, jobs)
        assert await q.count(con, "job") == 2


@pytest.mark.parametrize("poison", ["skip", "park_key"])
async def test_a_poisonous_job_that_is_locked_delays_the_claims_of_its_key_only(
    log: Log, real_clock: LoopClock, poison: str
) -> None:
    """It is poison as soon as it is free, with the attempts that it has had."""
    async with log.connected() as con, log.connected() as operator:
        q = await queue(con, log, poison=poison, max_attempts=2, keep_dead=at(9) - at(0))
        await con.execute("SET statement_timeout = '5s'")
        await q.enqueue(con, ("deadly", 1))
        for now in (0, LEASE):
            assert payloads(await q.claim(con, now=now)) == [1]
        await q.enqueue(con, ("other", 2))
        async with operator.transaction():
            await operator.fetch(f"SELECT FROM {log.sql}.job WHERE key = 'deadly' FOR UPDATE")
            assert payloads(await q.claim(con, now=2 * LEASE)) == [2]
        assert await q.claim(con, now=2 * LEASE + 1) == []
        table = "finished_job" if poison == "skip" else "lane"
        query = f"SELECT attempts FROM {log.sql}.{table} WHERE queue = $1 AND key = 'deadly'"
        assert await con.fetchval(query, q.name) == 2
