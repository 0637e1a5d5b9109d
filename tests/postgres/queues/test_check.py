"""Faults in the schema of queues are named, and repaired without losing a job.

White box: the check on a connection, and the list of the schema's objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.queues.jobs_help import claim, create, handled, insert, settle

from sluicegate.postgres.schema.check import check
from sluicegate.postgres.schema.objects import schema_objects

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock
    from sluicegate.postgres.schema.objects import SchemaProblem

PLANTED = {
    "trigger-missing": "DROP TRIGGER ring ON {s}.job",
    "trigger-missing, disabled": "ALTER TABLE {s}.job DISABLE TRIGGER ring",
    "trigger-missing, as on a replica": "ALTER TABLE {s}.job ENABLE REPLICA TRIGGER ring",
    "function-changed": (
        "CREATE OR REPLACE FUNCTION {s}.ring() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN RETURN NULL; END'"
    ),
    "function-missing": "DROP FUNCTION {s}.ring CASCADE",
    "jobs-without-lane": "DELETE FROM {s}.bell",
    "table-missing": "DROP TABLE {s}.bell",
    "index-missing": "DROP INDEX {s}.job_lane",
    "sequence-behind": "SELECT setval('{s}.job_place', 1)",
    "public-rights": "GRANT EXECUTE ON FUNCTION {s}.claim_jobs TO PUBLIC",
}
SHOWN_BY_STREAMS = {
    "function-missing",
    "table-missing",
    "index-missing",
    "public-rights",
}
"""Objects of another name; the tests of streams plant the same faults."""


async def _found(con: Any, log: Log) -> dict[str, SchemaProblem]:
    return {problem.name: problem for problem in await check(con, log.schema)}


async def _repair(con: Any, log: Log, most: int = 3) -> None:
    """Repair until no fault is left: a repair may reveal faults that could not be checked
    before.
    """
    for _ in range(most):
        problems = await check(con, log.schema)
        if not problems:
            return
        for problem in problems:
            await con.execute(";".join(problem.repair))
    assert await check(con, log.schema) == []


async def _planted(con: Any, log: Log, damage: str) -> None:
    await con.execute(damage.replace("{s}", log.sql))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(each, marks=pytest.mark.long if each in SHOWN_BY_STREAMS else ())
        for each in PLANTED
    ],
)
async def test_a_problem_is_named_and_repaired_and_no_job_is_lost(
    log: Log, real_clock: LoopClock, case: str
) -> None:
    async with log.connected() as con:
        await create(con, log, "q")
        await insert(con, log, "q", ("k", 1), ("m", 2))
        await insert(con, log, "q", ("k", 3))
        assert await _found(con, log) == {}
        await _planted(con, log, PLANTED[case])
        problem = (await _found(con, log))[case.partition(",")[0]]
        assert not problem.is_note
        await _repair(con, log)
        await insert(con, log, "q", ("k", 4))
        assert sorted(await handled(con, log, "q")) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(each, marks=() if each == "trigger-missing, disabled" else pytest.mark.long)
        for each in PLANTED
        if each.startswith("trigger")
    ],
)
async def test_jobs_that_were_inserted_without_the_trigger_are_claimed_after_its_repair(
    log: Log, real_clock: LoopClock, case: str
) -> None:
    """Also jobs behind which their lane has already been read, and jobs of an ordered queue."""
    async with log.connected() as con:
        await create(con, log, "q")
        await create(con, log, "line", ordering_required=True, poison="block")
        await insert(con, log, "q", ("k", 1))
        rows = await claim(con, log, "q")
        await _planted(con, log, PLANTED[case])
        await insert(con, log, "q", ("k", 2), ("other", 3), (None, 4))
        await insert(con, log, "line", ("k", 5), (None, 6))
        assert await settle(con, log, "q", rows, "free", rows) == ["freed"]
        assert await handled(con, log, "line") == []
        problems = await _found(con, log)
        assert set(problems) == {case.partition(",")[0], "jobs-without-lane"}
        trigger = problems[case.partition(",")[0]]
        assert "ring_again" in trigger.repair[-1]
        await con.execute(";".join(trigger.repair))
        assert await _found(con, log) == {}
        assert sorted(await handled(con, log, "q")) == [2, 3, 4]
        assert await handled(con, log, "line") == [5, 6]


async def test_a_repair_of_the_trigger_waits_for_open_inserts(
    log: Log, real_clock: LoopClock
) -> None:
    """Otherwise their jobs would be committed after the bells have been rung again."""
    async with log.connected() as con, log.connected() as other:
        await create(con, log, "q")
        await _planted(con, log, PLANTED["function-changed"])
        repair = (await _found(con, log))["function-changed"].repair
        async with other.transaction():
            await insert(other, log, "q", ("k", 1))
            with pytest.raises(asyncpg.LockNotAvailableError):
                await con.execute(f"SET lock_timeout = 1; {';'.join(repair)}")
        await con.execute("ROLLBACK; RESET lock_timeout")
        await con.execute(";".join(repair))
        assert await _found(con, log) == {}
        assert await handled(con, log, "q") == [1]


async def test_no_job_that_a_claim_finds_is_told_of(log: Log, real_clock: LoopClock) -> None:
    """Leased, delayed, parked, keyless jobs, jobs late behind a lease, and jobs of a paused
    queue.
    """
    async with log.connected() as con, log.connected() as other:
        await create(con, log, "q", max_attempts=1)
        await create(con, log, "line", ordering_required=True, poison="block")
        await create(con, log, "paused", paused=True)
        open_insert = other.transaction()
        await open_insert.start()
        await insert(other, log, "q", ("k", 1))
        await insert(con, log, "q", ("k", 2), ("parked", 3), (None, 4))
        await insert(con, log, "line", (None, 5), ("a", 6))
        await insert(con, log, "paused", ("k", 7))
        await con.execute(f"SELECT {log.sql}.park_lane('q', 'parked', 'why')")
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, key, payload, due) "
            "VALUES ('q', 'later', '8', now() + interval '1 hour')"
        )
        assert await _found(con, log) == {}
        rows = [row for row in await claim(con, log, "q") if row["r_lane"] == "k"]
        await claim(con, log, "line")
        assert await _found(con, log) == {}
        assert await settle(con, log, "q", rows, "keep", rows) == ["kept"]
        await open_insert.commit()
        assert await _found(con, log) == {}
        assert await claim(con, log, "q", "another") == []
        assert await _found(con, log) == {}
        assert await settle(con, log, "q", rows, "free", []) == ["freed"]
        assert await _found(con, log) == {}
        (late,) = await claim(con, log, "q")
        assert late["r_payload"] == "1"


async def test_a_job_behind_which_its_lane_has_been_read_is_told_of(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        await create(con, log, "q")
        await insert(con, log, "q", ("k", 1), ("m", 2))
        rows = await claim(con, log, "q")
        await settle(con, log, "q", rows, "keep", rows[1:])
        await con.execute(f"UPDATE {log.sql}.lane SET after = 9 WHERE key = 'k'")
        problem = (await _found(con, log))["jobs-without-lane"]
        assert "of 1 keys or more, such as 'k'" in problem.text
        await con.execute(";".join(problem.repair))
        assert await _found(con, log) == {}


async def test_lost_jobs_are_found_among_many_keys(log: Log, real_clock: LoopClock) -> None:
    """By key name first; beyond 1,000 keys by the age of jobs."""
    async with log.connected() as con:
        await create(con, log, "q")
        await insert(con, log, "q", ("z", 1), *((f"k{n}", n) for n in range(1500)))
        assert await _found(con, log) == {}
        await con.execute(f"DELETE FROM {log.sql}.bell WHERE key = 'z'")
        assert "such as 'z'" in (await _found(con, log))["jobs-without-lane"].text


async def test_a_sequence_that_was_not_restored_is_told_and_set(
    log: Log, real_clock: LoopClock
) -> None:
    sequence = "job_place"
    async with log.connected() as con:
        await create(con, log, "q")
        for number in range(3):
            await insert(con, log, "q", (f"k{number}", number), (None, number))
        rows = await claim(con, log, "q")
        await insert(con, log, "q", ("m", 9))
        last = await con.fetchval(f"SELECT last_value FROM {log.sql}.{sequence}")
        await con.execute(f"ALTER SEQUENCE {log.sql}.{sequence} RESTART")
        problem = (await _found(con, log))["sequence-behind"]
        assert f"{sequence} is at 0, but {last} is in use" in problem.text
        await con.execute(";".join(problem.repair))
        assert await _found(con, log) == {}
        await insert(con, log, "q", ("m", 10))
        assert await con.fetchval(f"SELECT max(place) FROM {log.sql}.job") == 8
        assert min(row["r_lease"] for row in await claim(con, log, "q")) > max(
            row["r_lease"] for row in rows
        )


async def test_every_object_of_queues_is_created_again(log: Log, real_clock: LoopClock) -> None:
    """Each statement needs only the objects created before it."""
    there = [(each.kind, each.name) for each in schema_objects()]
    of_queues = schema_objects()[there.index(("sequence", "job_place")) :]
    async with log.connected() as con:
        for each in of_queues:
            if each.kind in {"table", "sequence", "function"}:
                await con.execute(f"DROP {each.kind} IF EXISTS {log.sql}.{each.name} CASCADE")
        await _repair(con, log)
        await create(con, log, "q")
        await insert(con, log, "q", ("k", 1))
        assert await handled(con, log, "q") == [1]


async def test_a_trigger_of_the_applications_own_is_no_problem(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        await con.execute(
            f"CREATE TABLE {log.sql}.mine (n int);"
            f"CREATE TRIGGER ring AFTER INSERT ON {log.sql}.mine "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        )
        assert await check(con, log.schema) == []
        await con.execute(f"DROP TRIGGER ring ON {log.sql}.job")
        assert set(await _found(con, log)) == {"trigger-missing"}


async def test_the_migrations_are_read_with_every_trigger_and_index_of_the_catalogs(
    log: Log, real_clock: LoopClock
) -> None:
    queries = {
        "trigger": "SELECT c.relname || '.' || tgname FROM pg_trigger t JOIN pg_class c "
        "ON c.oid = t.tgrelid WHERE c.relnamespace = to_regnamespace($1) AND NOT tgisinternal",
        "index": "SELECT c.relname::text FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid "
        "WHERE c.relnamespace = to_regnamespace($1) AND NOT EXISTS "
        "(SELECT FROM pg_constraint WHERE conindid = c.oid)",
        "function": "SELECT proname::text FROM pg_proc WHERE pronamespace = to_regnamespace($1)",
    }
    async with log.connected() as con:
        for kind, query in queries.items():
            there = sorted(row[0] for row in await con.fetch(query, log.sql))
            assert there == sorted(each.name for each in schema_objects() if each.kind == kind)
