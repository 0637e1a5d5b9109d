"""A log saved by pg_dump and restored by pg_restore, entirely or in part, passes the check or is
repaired by it.

White box: the check on a connection, and the classes of advisory locks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.postgres.streams.dump_help import Dumps
from tests.postgres.streams.log_help import Log, role

from sluicegate.postgres import install_streams
from sluicegate.postgres.schema.check import check
from sluicegate.postgres.schema.installation import taken_classes

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.batcher import LoopClock
    from sluicegate.postgres.schema.objects import SchemaProblem
    from sluicegate.testing import EmbeddedPostgres


@pytest.fixture
def dumps(embedded_postgres: EmbeddedPostgres, log: Log, tmp_path: Path) -> Dumps:
    return Dumps(embedded_postgres, log, tmp_path)


async def _checked(log: Log) -> dict[str, SchemaProblem]:
    async with log.connected() as con:
        return {problem.name: problem for problem in await check(con, log.schema)}


async def _repaired(log: Log, problem: SchemaProblem) -> dict[str, SchemaProblem]:
    async with log.connected() as con:
        await con.execute(";".join(problem.repair))
    return await _checked(log)


async def test_positions_class_and_sequence_survive(
    log: Log, dumps: Dumps, real_clock: LoopClock
) -> None:
    async with role(log) as app, log.connected() as con:
        await install_streams(log.dsn, schema=log.schema, append=app.name)
        await log.append(con, "order-1", 1, 2)
        async with con.transaction():  # leaves a gap
            await log.append(con, "order-2", 1)
            await con.execute(f"DELETE FROM {log.sql}.message WHERE stream = 'order-2'")
        await log.append(con, "order-1", 3)
        await dumps.dump()
        restored = await dumps.database("whole")
        await dumps.restore(restored)
        assert await _checked(restored) == {}
        async with restored.connected() as other:
            assert await taken_classes(other) == {
                log.schema: (await taken_classes(con))[log.schema]
            }
            query = f"SELECT position, stream, version, slot, id, at FROM {log.sql}.message"
            assert [*await other.fetch(query)] == [*await con.fetch(query)]
            assert await log.append(other, "order-1", 4) == [5]
            await other.execute(f"DROP OWNED BY {app.name} CASCADE")


async def test_rows_without_their_sequence_are_found(
    log: Log, dumps: Dumps, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        await log.append(con, "order-1", 1, 2, 3)
    await dumps.dump()
    restored = await dumps.database("rows")
    await install_streams(restored.dsn, schema=log.schema)
    await dumps.restore(restored, "--data-only", "-t", "message")
    (problem,) = (await _checked(restored)).values()
    assert problem.name == "sequence-behind"
    assert await _repaired(restored, problem) == {}
    async with restored.connected() as con:
        assert await log.append(con, "order-1", 4) == [4]


async def test_a_dump_without_privileges_opens_no_function_unnoticed(
    log: Log, dumps: Dumps, real_clock: LoopClock
) -> None:
    """`append` runs with the owner's permissions, and by default everyone may call functions."""
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, append=app.name)
        await dumps.dump()
        restored = await dumps.database("closed")
        await dumps.restore(restored, "--no-privileges")
        found = await _checked(restored)
        assert set(found) == {"public-rights"}
        assert await _repaired(restored, found["public-rights"]) == {}
        async with restored.connected() as con:
            await con.execute(f"DROP OWNED BY {app.name} CASCADE")


async def test_a_log_restored_beside_one_of_its_class_is_found(
    log: Log, dumps: Dumps, real_clock: LoopClock
) -> None:
    """The other log must have another schema name: the class follows from the name unless it is
    taken.
    """
    async with log.connected() as con:
        await log.append(con, "order-1", 1)
        await dumps.dump()
        target = await dumps.database("beside")
        await dumps.restore(target)
        async with target.connected() as other:
            await other.execute(f"ALTER SCHEMA {log.sql} RENAME TO older_log")
        await dumps.restore(target)
    problem = (await _checked(target))["class-shared"]
    assert "older_log" in problem.text
    assert await _repaired(target, problem) == {}


async def test_a_renamed_schema_is_repaired(log: Log, dumps: Dumps, real_clock: LoopClock) -> None:
    """Functions contain the schema name in their text."""
    renamed = Log(log.dsn, f"{log.schema}_renamed")
    async with log.connected() as con:
        await log.append(con, "order-1", 1)
        await con.execute(f"ALTER SCHEMA {log.sql} RENAME TO {renamed.sql}")
        problems = await check(con, renamed.schema)
        assert {problem.name for problem in problems} == {"function-changed"}
        for problem in problems:
            await con.execute(";".join(problem.repair))
        assert await check(con, renamed.schema) == []
        assert await renamed.append(con, "order-1", 2) == [2]
