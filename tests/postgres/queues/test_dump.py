"""Queues saved by pg_dump and restored by pg_restore, entirely or in part, lose no job."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.jobs_help import claim, create, handled, insert
from tests.postgres.streams.dump_help import Dumps

from sluicegate.postgres import check_streams, install_streams

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


@pytest.fixture
def dumps(embedded_postgres: EmbeddedPostgres, log: Log, tmp_path: Path) -> Dumps:
    return Dumps(embedded_postgres, log, tmp_path)


async def _filled(log: Log) -> None:
    """Leased jobs, jobs of a lane, and jobs that only a bell shows."""
    async with log.connected() as con:
        await create(con, log, "q")
        await insert(con, log, "q", ("k", 1), (None, 2))
        await claim(con, log, "q")
        await insert(con, log, "q", ("k", 3), ("m", 4))


async def _repaired(log: Log) -> set[str]:
    """Repair all faults; return the names of the problems."""
    problems = await check_streams(log.dsn, schema=log.schema)
    async with log.connected() as con:
        for problem in problems:
            await con.execute(";".join(problem.repair))
    assert await check_streams(log.dsn, schema=log.schema) == []
    return {problem.name for problem in problems}


async def _rest(log: Log) -> list[int]:
    """The jobs handled after every lease has expired."""
    async with log.connected() as con:
        await con.execute(
            f"UPDATE {log.sql}.lane SET lease_until = now();"
            f"UPDATE {log.sql}.job SET lease_until = now() WHERE lease IS NOT NULL"
        )
        await insert(con, log, "q", ("k", 5))
        return await handled(con, log, "q")


async def test_a_dump_keeps_jobs_lanes_and_bells(
    log: Log, dumps: Dumps, real_clock: LoopClock
) -> None:
    """Q21."""
    await _filled(log)
    await dumps.dump()
    restored = await dumps.database("whole")
    await dumps.restore(restored)
    assert await _repaired(restored) == set()
    assert sorted(await _rest(restored)) == [1, 2, 3, 4, 5]


async def test_a_restore_of_rows_needs_the_trigger_to_be_disabled(
    log: Log, dumps: Dumps, real_clock: LoopClock
) -> None:
    """Otherwise it refuses jobs whose queues are restored later, and rings its own bells."""
    await _filled(log)
    await dumps.dump()
    restored = await dumps.database("rows")
    await install_streams(restored.dsn, schema=log.schema)
    tables = [each for name in ("queue", "job", "lane", "bell") for each in ("-t", name)]
    with pytest.raises(subprocess.CalledProcessError):
        await dumps.restore(restored, "--data-only", *tables)
    async with restored.connected() as con:
        await con.execute(f"TRUNCATE {log.sql}.job, {log.sql}.lane, {log.sql}.bell")
    await dumps.restore(restored, "--data-only", "--disable-triggers", *tables)
    assert await _repaired(restored) == {"sequence-behind"}
    assert sorted(await _rest(restored)) == [1, 2, 3, 4, 5]


async def test_jobs_that_were_restored_alone_are_found_by_claims_after_a_repair(
    log: Log, dumps: Dumps, real_clock: LoopClock
) -> None:
    await _filled(log)
    await dumps.dump()
    restored = await dumps.database("jobs")
    await install_streams(restored.dsn, schema=log.schema)
    tables = ("-t", "queue", "-t", "job")
    await dumps.restore(restored, "--data-only", "--disable-triggers", *tables)
    assert await _repaired(restored) == {"sequence-behind", "jobs-without-lane"}
    assert sorted(await _rest(restored)) == [1, 2, 3, 4, 5]
