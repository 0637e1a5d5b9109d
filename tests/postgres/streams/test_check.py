"""Each problem of a schema has a name, and its statements repair it.

White box: the check on a connection, and the list of the schema's objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.log_help import Log, fresh_name, role

from sluicegate.postgres import check_streams, install_streams
from sluicegate.postgres.schema.check import check
from sluicegate.postgres.schema.installation import install, taken_classes
from sluicegate.postgres.schema.objects import schema_objects
from sluicegate.postgres.schema.opened import filled

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.postgres.schema.objects import SchemaProblem

PLANTED = {
    "older": "DELETE FROM {s}.migration",
    "newer": "INSERT INTO {s}.migration VALUES (999, 'later', '', '9.9')",
    "function-missing": "DROP FUNCTION {s}.horizon()",
    "function-changed": (
        "CREATE OR REPLACE FUNCTION {s}.horizon() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"
    ),
    "view-missing": "DROP VIEW {s}.appender",
    "index-missing": "DROP INDEX {s}.message_slot",
    "table-missing": "DROP TABLE {s}.parked",
    "sequence-behind": "SELECT setval('{s}.position', 1)",
    "public-rights": "GRANT EXECUTE ON FUNCTION {s}.append TO PUBLIC",
}
BY_COMMAND = {"older", "newer"}


async def _found(con: Any, log: Log) -> dict[str, SchemaProblem]:
    return {problem.name: problem for problem in await check(con, log.schema)}


@pytest.mark.parametrize("name", PLANTED)
async def test_a_problem_is_named_and_repaired_by_its_statements(
    log: Log, real_clock: LoopClock, name: str
) -> None:
    async with log.connected() as con:
        await log.append(con, "order-1", 1, 2, 3)
        assert await _found(con, log) == {}
        await con.execute(PLANTED[name].replace("{s}", log.sql))
        problem = (await _found(con, log))[name]
        assert not problem.is_note
        if name in BY_COMMAND:
            assert (
                "sluicegate pg upgrade" if name == "older" else "Sluicegate 9.9"
            ) in problem.advice
            return
        await con.execute(";".join(problem.repair))
        assert await _found(con, log) == {}
        assert await log.append(con, "order-1", 4) == [4]
        assert await con.fetchval(f"SELECT {log.sql}.horizon()") == 4


async def test_every_missing_object_is_created_again(log: Log, real_clock: LoopClock) -> None:
    """Each statement needs only the objects created before it."""
    async with log.connected() as con:
        await con.execute(f"DROP FUNCTION {log.sql}.slot_of CASCADE")
        await con.execute(f"DROP TABLE {log.sql}.message CASCADE")
        await con.execute(f"DROP SEQUENCE {log.sql}.position CASCADE")
        for each in schema_objects():
            if each.kind == "function":
                await con.execute(f"DROP FUNCTION IF EXISTS {log.sql}.{each.name} CASCADE")
        for problem in await check(con, log.schema):
            await con.execute(";".join(problem.repair))
        assert await _found(con, log) == {}
        assert await log.append(con, "order-1", 1) == [1]


async def test_a_log_of_the_same_class_as_another_gets_its_own(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        other = Log(log.dsn, fresh_name())
        await install(con, other.schema, library="test")
        own = (await taken_classes(con))[log.schema]
        for each in schema_objects():
            if "{class}" in each.statement:
                await con.execute(filled(each.statement, other.schema, own))
        await con.execute(f"UPDATE {other.sql}.meta SET value = '{own}' WHERE name = 'class'")
        assert log.schema in (await _found(con, other))["class-shared"].text
        problem = (await _found(con, log))["class-shared"]
        await con.execute(";".join(problem.repair))
        for one in (log, other):
            assert await _found(con, one) == {}
        assert await log.append(con, "order-1", 1) == [1]


async def test_a_schema_that_is_missing_or_no_log_is_told(log: Log, real_clock: LoopClock) -> None:
    for schema in ("nowhere", "public"):
        (problem,) = await check_streams(log.dsn, schema=schema)
        assert problem.name == "schema-missing"
        assert "sluicegate pg install" in str(problem)


async def test_what_the_role_may_not_read_is_not_checked_and_said_so(
    log: Log, real_clock: LoopClock
) -> None:
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, append=app.name)
        (problem,) = await check_streams(app.dsn, schema=log.schema)
        assert (problem.name, problem.is_note) == ("not-readable", True)
