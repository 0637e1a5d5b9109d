"""Enqueueing: transactions, savepoints, isolation levels, ids, client numbers and locks."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from tests.postgres.queues.queue_help import Queue, at, payloads, queue, waits_for_a_lock

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock


def name(number: int) -> str:
    return str(UUID(int=number))


async def enqueue(con: Any, q: Queue, keys: list[str], **arrays: Any) -> list[str]:
    """Call the SQL function; return the states."""
    given = "".join(f", p_{each} => ${n}" for n, each in enumerate(arrays, 4))
    rows = await con.fetch(
        f"SELECT r_state FROM {q.sql}.enqueue($1, $2, $3{given})",
        *(q.name, keys, [json.dumps(key) for key in keys], *arrays.values()),
    )
    return [row["r_state"] for row in rows]


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_jobs_enter_with_their_transaction_at_any_isolation(
    log: Log, real_clock: LoopClock, isolation: str
) -> None:
    """Jobs of a rolled-back savepoint do not."""
    async with log.connected() as con, log.connected() as user:
        q = await queue(con, log)
        work = user.transaction(isolation=isolation)
        await work.start()
        await q.enqueue(user, ("k", 1))
        savepoint = user.transaction()
        await savepoint.start()
        await q.enqueue(user, ("k", 2), ("m", 3))
        await savepoint.rollback()
        await q.enqueue(con, ("m", 4), ("x", 5))
        assert sorted(payloads(await q.claim(con))) == [4, 5]
        await q.enqueue(user, ("k", 6), ("x", 7))
        await work.commit()
        assert payloads(await q.claim(con)) == [1, 6]
        assert sorted(payloads(await q.claim(con, now=50))) == [1, 4, 5]


async def test_jobs_are_copied(log: Log, real_clock: LoopClock) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await con.copy_records_to_table(
            "job",
            schema_name=log.schema,
            columns=["queue", "key", "payload"],
            records=[(q.name, f"k{n % 10}", str(n)) for n in range(100)],
        )
        jobs = await q.claim(con)
        assert [job.payload for job in jobs if job.key == "k3"] == list(range(3, 100, 10))
        assert len(jobs) == 100


async def test_an_unknown_queue_is_told(log: Log, real_clock: LoopClock) -> None:
    async with log.connected() as con:
        for call in (Queue(log, "no").enqueue(con, ("k", 1)), Queue(log, "no").claim(con)):
            with pytest.raises(asyncpg.PostgresError, match="there is no queue no") as raised:
                await call
            assert raised.value.sqlstate == "PS010"


async def test_a_replay_is_known_by_numbers_of_a_client(log: Log, real_clock: LoopClock) -> None:
    """Q15, Q-T14."""
    async with log.connected() as con:
        q = await queue(con, log)
        for keys, numbers, states in (
            (["a", "b"], [1, 2], ["new", "new"]),
            (["b", "c"], [2, 3], ["known", "new"]),
            (["a", "b"], [1, 2], ["known", "known"]),
        ):
            assert await enqueue(con, q, keys, client="c", numbers=numbers) == states
        assert len(await q.claim(con)) == 3
        wrong: tuple[Any, ...] = ([4, 4], [5, 4], [None, 4], None)
        for given in wrong:
            with pytest.raises(asyncpg.PostgresError, match="must rise") as raised:
                await enqueue(con, q, ["x", "y"], client="c", numbers=given)
            assert raised.value.sqlstate == "PS012"


async def test_a_replay_is_known_by_ids_also_while_the_first_call_is_open(
    log: Log, real_clock: LoopClock
) -> None:
    """Q15, Q-T14. A retry after a lost connection waits for the outcome of the first call."""
    async with log.connected() as con, log.connected() as first:
        q = await queue(con, log)
        for commits, states in ((True, ["known", "new"]), (False, ["new", "new"])):
            ids = [name(10 + commits), name(20 + commits)]
            work = first.transaction()
            await work.start()
            assert await enqueue(first, q, ["a"], ids=ids[:1]) == ["new"]
            retry = asyncio.create_task(enqueue(con, q, ["a", "b"], ids=ids))
            await waits_for_a_lock(log, con)
            await (work.commit() if commits else work.rollback())
            assert await retry == states
        assert len(await q.claim(con)) == 4


async def test_a_replay_writes_so_that_its_commit_waits_for_a_synchronous_standby(
    log: Log, real_clock: LoopClock
) -> None:
    """The commit that enqueued the job may have been cut off while it waited. A transaction that
    writes nothing would report a job that a failover loses.
    """
    async with log.connected() as con:
        q = await queue(con, log)
        for arrays in ({"ids": [name(1)]}, {"locks": ["lock"]}):
            assert await enqueue(con, q, ["a"], **arrays) == ["new"]
            before = await con.fetchval("SELECT pg_current_wal_insert_lsn()")
            async with con.transaction():
                assert await enqueue(con, q, ["a"], **arrays) != ["new"]
                assert await con.fetchval("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
                assert await con.fetchval("SELECT pg_current_wal_insert_lsn() > $1", before)


@pytest.mark.parametrize("column", ["id", "queueing_lock"])
async def test_a_plain_insert_of_a_job_that_is_known_violates_a_constraint(
    log: Log, real_clock: LoopClock, column: str
) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        value = name(1)
        await q.enqueue(con, ("k", 1), **{column: value})
        with pytest.raises(asyncpg.UniqueViolationError) as raised:
            await q.enqueue(con, ("k", 2), **{column: value})
        table = "job_id" if column == "id" else "queueing_lock"
        assert raised.value.constraint_name == f"{table}_pkey"
        assert payloads(await q.claim(con)) == [1]


async def test_calls_at_once_with_the_same_ids_and_locks_do_not_deadlock(
    log: Log, real_clock: LoopClock
) -> None:
    """One call has the arrays of the other in reverse order."""
    async with log.connected() as con, log.connected() as one, log.connected() as two:
        q = await queue(con, log)
        for start in range(0, 400, 20):
            numbers = [*range(start, start + 20)]
            states = await asyncio.gather(
                *(
                    enqueue(
                        user,
                        q,
                        [f"k{n}" for n in order],
                        ids=[name(n) for n in order],
                        locks=[f"lock {n}" for n in order],
                    )
                    for user, order in ((one, numbers), (two, numbers[::-1]))
                )
            )
            assert sorted(itertools.chain(*states)) == ["known"] * 20 + ["new"] * 20
        assert await q.count(con, "job") == 400


async def test_places_rise_with_the_numbers_of_a_client(log: Log, real_clock: LoopClock) -> None:
    """The second call waits for the first, and takes its places afterwards."""
    async with log.connected() as con, log.connected() as first, log.connected() as second:
        q = await queue(con, log)
        work = first.transaction()
        await work.start()
        await enqueue(first, q, ["k1"], client="c", numbers=[1])
        later = asyncio.create_task(enqueue(second, q, ["k9"], client="c", numbers=[9]))
        await waits_for_a_lock(log, second)
        await enqueue(first, q, ["k2"], client="c", numbers=[2])
        await work.commit()
        assert await later == ["new"]
        rows = await con.fetch(
            f"SELECT key FROM {q.sql}.job WHERE queue = $1 ORDER BY place", q.name
        )
        assert [row["key"] for row in rows] == ["k1", "k2", "k9"]


async def test_one_job_of_a_queueing_lock_waits_at_a_time(log: Log, real_clock: LoopClock) -> None:
    """Until it has begun. A job that is begun again does not free the lock of the next one."""
    async with log.connected() as con:
        q = await queue(con, log, max_attempts=9)
        assert await enqueue(con, q, ["k", "k"], locks=["L", "L"]) == ["new", "locked"]
        assert await enqueue(con, q, ["k"], locks=["L"], ids=[name(1)]) == ["locked"]
        await q.claim(con, per=1)
        assert await enqueue(con, q, ["m"], locks=["L"], ids=[name(1)]) == ["new"]
        await q.call(con, "park_lane", "m", "wish", at(0))
        assert len(await q.claim(con, now=50)) == 1
        assert await enqueue(con, q, ["x"], locks=["L"]) == ["locked"]
        assert await q.call(con, "purge_waiting", "m", 10, at(50)) == 1
        assert await enqueue(con, q, ["x"], locks=["L"]) == ["new"]


async def test_a_lock_is_free_again_when_its_job_has_left_in_any_way(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        q = await queue(con, log)
        await enqueue(con, q, ["k"], locks=["L"])
        await q.call(con, "park_lane", "k", "wish", at(0))
        assert await q.claim(con) == []
        assert await q.call(con, "resume_lane", "k", True, False, at(0)) == "dead"
        assert await enqueue(con, q, ["k"], locks=["L"], due=[at(5)]) == ["new"]
        assert await enqueue(con, q, ["k"], locks=["L"]) == ["locked"]
        assert len(await q.claim(con, now=5)) == 1
        assert await enqueue(con, q, ["k"], locks=["L"]) == ["new"]
        assert await q.count(con, "queueing_lock") == 1
