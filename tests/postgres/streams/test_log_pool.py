"""A used log serves the next test only if it is indistinguishable from a new one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.log_pool import lent

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.testing import EmbeddedPostgres

CHANGES = [
    "GRANT SELECT ON {schema}.message TO pg_monitor",
    "ALTER FUNCTION {schema}.horizon() COST 7",
    "CREATE INDEX ON {schema}.message (type)",
    "ANALYZE {schema}.message",
    *(
        pytest.param(each, marks=pytest.mark.long)
        for each in [
            "GRANT USAGE ON SCHEMA {schema} TO pg_monitor",
            "GRANT EXECUTE ON FUNCTION {schema}.horizon() TO pg_monitor",
            "ALTER TABLE {schema}.message SET (fillfactor = 50)",
            "ALTER TABLE {schema}.stream_end ALTER COLUMN version SET DEFAULT 3",
            "ALTER TABLE {schema}.stream_end DROP CONSTRAINT stream_end_pkey",
            "ALTER SEQUENCE {schema}.position INCREMENT BY 2",
            "CREATE VIEW {schema}.more AS SELECT 1",
            "DROP INDEX {schema}.message_category",
            "DROP SCHEMA {schema} CASCADE",
            "INSERT INTO {schema}.meta VALUES ('more', '1')",
        ]
    ),
]


def run(log: Log, statement: str) -> Any:
    """Append two messages, execute a statement, and return its result."""

    async def executed() -> Any:
        async with log.connected() as con:
            await log.append(con, "a", 1, 2)
            return await con.fetchval(statement.replace("{schema}", log.sql))

    return asyncio.run(executed())


def test_a_used_log_is_empty_and_its_positions_begin_again(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    counted = "SELECT array[count(*), min(position), max(position)] FROM {schema}.message"
    with lent(embedded_postgres.dsn) as first:
        assert run(first, counted) == [2, 1, 2]
    with lent(embedded_postgres.dsn) as second:
        assert second == first
        assert run(second, counted) == [2, 1, 2]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_log_is_not_used_again(embedded_postgres: EmbeddedPostgres, change: str) -> None:
    with lent(embedded_postgres.dsn) as first:
        run(first, change)
    with lent(embedded_postgres.dsn) as second:
        assert second != first
        run(second, "SELECT 1")


def test_a_log_is_not_used_again_while_a_session_of_its_test_is_left(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    with asyncio.Runner() as runner:
        with lent(embedded_postgres.dsn) as first:
            left = first.connected()
            runner.run(left.__aenter__())
        with lent(embedded_postgres.dsn) as second:
            assert second != first
        runner.run(left.__aexit__(None, None, None))
