"""Jobs that the server accepts and Python cannot decode: each is poison alone (O-T18, O2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.source.test_handling import dead, enqueue, handle_all, left, make

from sluicegate.postgres import QueueAdmin

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")

DIGITS = "'{\"n\": 1e5000}'"
DEEP = "('{\"n\": ' || repeat('[', 3000) || repeat(']', 3000) || '}')::jsonb"
BAD = {DIGITS: "ValueError", DEEP: "RecursionError"}
TIMES = ("0044-03-15 BC", "infinity", "-infinity", "200000-01-01")


async def acknowledge(message: object) -> None:
    del message


async def fill(log: Log) -> list[tuple[Any, int]]:
    """Enqueue jobs with every kind of value; return key and payload of those that are intact."""
    await enqueue(log, *[(f"k{at % 3}", at) for at in range(9)], (None, 9))
    async with log.connected() as con:
        for at, headers in enumerate(BAD):
            for key in (f"'bad {at}'", "NULL"):
                await con.execute(
                    f"INSERT INTO {log.sql}.job (queue, key, payload, headers) "
                    f"VALUES ('jobs', {key}, '-1', {headers})"
                )
        for time in TIMES:
            await con.execute(
                f"INSERT INTO {log.sql}.job (queue, key, payload, at) "
                f"VALUES ('jobs', 'times', '0', '{time}')"
            )
    await enqueue(log, *[(f"bad {at}", 10 + at) for at in range(len(BAD))])
    intact = [(f"k{at % 3}", at) for at in range(9)]
    return [*intact, (None, 9), *[("times", 0) for _ in TIMES]]


async def test_the_other_jobs_are_handled_and_an_operator_can_skip_it(log: Log) -> None:
    await make(log)
    intact = await fill(log)
    tries = await handle_all(log, acknowledge)
    assert sorted(tries, key=repr) == sorted(((*each, 1) for each in intact), key=repr)
    async with QueueAdmin(log.dsn, schema=log.schema) as admin, log.connected() as con:
        lanes = await con.fetch(f"SELECT key, state, attempts, reason FROM {log.sql}.lane")
        told = [f"the source cannot decode the record ({error})" for error in BAD.values()]
        assert sorted(map(tuple, lanes)) == [
            (f"bad {at}", 2, 1, reason) for at, reason in enumerate(told)
        ]
        jobs = await admin.jobs("jobs")
        stopped = [job for job in (await jobs.list("parked")).items if job.key is None]
        assert [(job.state, job.attempts, job.reason) for job in stopped] == [
            ("parked", 1, reason) for reason in told
        ]
        await jobs.cancel([job.place for job in stopped])
        keys = await admin.keys("jobs")
        for at in range(len(BAD)):
            await keys.unblock(f"bad {at}", skip=True)
    assert await handle_all(log, acknowledge) == [(f"bad {at}", 10 + at, 1) for at in range(2)]
    assert await left(log) == []
    assert [payload for payload, *_ in await dead(log)] == [-1] * 2


async def test_it_is_a_dead_letter_of_a_queue_that_skips_poison(log: Log) -> None:
    """No lease of another job is lost, and none of its attempts is used up."""
    await make(log, poison="skip")
    intact = await fill(log)
    tries = await handle_all(log, acknowledge)
    later = [(f"bad {at}", 10 + at) for at in range(len(BAD))]
    wanted = [(*each, 1) for each in (*intact, *later)]
    assert sorted(tries, key=repr) == sorted(wanted, key=repr)
    assert await left(log) == []
    assert {(payload, tries, error) for payload, tries, _, error in await dead(log)} == {
        (-1, 1, "UndecodableError")
    }
