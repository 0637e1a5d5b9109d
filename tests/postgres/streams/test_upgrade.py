"""Upgrades of a log, with migrations that a later release may contain.

White box: upgrades on a connection, with migrations of the test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.streams.log_help import Log, role

from sluicegate import UnavailableError
from sluicegate.postgres import install_streams, upgrade_streams
from sluicegate.postgres.schema.installation import upgrade
from sluicegate.postgres.schema.opened import Migration, migrations, newest, opened_schema

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock

GOOD = Migration(
    newest() + 1, "notes", "CREATE TABLE {schema}.note (text text); -- of {class}, '{}'"
)
BAD = Migration(newest() + 2, "bad", "CREATE TABLE {schema}.more (n int); SELECT 1 / 0;")
NOW = [each.version for each in migrations()]


async def _versions(con: Any, log: Log) -> list[int]:
    rows = await con.fetch(f"SELECT version FROM {log.sql}.migration ORDER BY 1")
    return [row["version"] for row in rows]


async def test_an_upgrade_applies_what_is_missing_and_keeps_messages(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        await log.append(con, "order-1", 1)
        history = (*migrations(), GOOD)
        planned = await upgrade(con, log.schema, library="later", history=history, dry=True)
        assert await _versions(con, log) == NOW
        assert await upgrade(con, log.schema, library="later", history=history) == planned
        assert await _versions(con, log) == [*NOW, newest() + 1]
        assert await upgrade(con, log.schema, library="later", history=history) == []
        assert await log.append(con, "order-1", 2) == [2]
        assert (await opened_schema(con, log.schema)).version == newest() + 1


async def test_a_migration_that_fails_leaves_the_version_before_it(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await upgrade(con, log.schema, library="later", history=(*migrations(), GOOD, BAD))
        assert await _versions(con, log) == [*NOW, newest() + 1]
        assert await con.fetchval("SELECT to_regclass($1)", f"{log.sql}.more") is None


async def test_an_upgrade_grants_roles_what_is_new(log: Log, real_clock: LoopClock) -> None:
    async with role(log) as app, log.connected() as con:
        await install_streams(log.dsn, schema=log.schema, append=app.name)
        await con.execute(f"REVOKE EXECUTE ON FUNCTION {log.sql}.append FROM {app.name}")
        await upgrade(con, log.schema, library="later", history=(*migrations(), GOOD))
        allowed = "SELECT has_function_privilege($1, $2::text::regproc, 'EXECUTE')"
        assert await con.fetchval(allowed, app.name, f"{log.sql}.append")


async def test_upgrading_the_newest_does_nothing(log: Log, real_clock: LoopClock) -> None:
    assert await upgrade_streams(log.dsn, schema=log.schema) == []


async def test_a_migration_does_not_hold_appenders_up_behind_a_long_transaction(
    log: Log, real_clock: LoopClock
) -> None:
    """It waits at most 5 s for a lock, and appends wait behind it for that time."""
    limit = "CREATE TABLE {schema}.found AS SELECT current_setting('lock_timeout') AS lock_timeout"
    change = Migration(newest() + 1, "limit", limit)
    async with log.connected() as con:
        await upgrade(con, log.schema, library="later", history=(*migrations(), change))
        assert await con.fetchval(f"SELECT lock_timeout FROM {log.sql}.found") == "5s"


async def test_a_lock_that_does_not_come_is_told_and_nothing_is_done(
    log: Log, real_clock: LoopClock
) -> None:
    async with role(log) as app, log.connected() as con:
        await con.execute(f"ALTER ROLE {app.name} SET lock_timeout = 1")
        async with con.transaction():
            await con.execute("SELECT pg_advisory_xact_lock(hashtext('sluicegate pg install'))")
            with pytest.raises(UnavailableError, match="lock_timeout"):
                await install_streams(app.dsn, schema="later")
