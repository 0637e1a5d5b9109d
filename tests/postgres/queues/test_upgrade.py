"""A schema of the release before, with streams only, gets queues while its applications run.

White box: an installation from the migrations of an earlier release.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.queues.jobs_help import claim, create, handled, insert, settle
from tests.postgres.streams.log_help import Log, append, fresh_name, role

from sluicegate import ConfigError, Consumer
from sluicegate.cli import main
from sluicegate.postgres import (
    PostgresQueueSource,
    QueueAdmin,
    check_streams,
    install_streams,
    upgrade_streams,
)
from sluicegate.postgres.schema.check import check
from sluicegate.postgres.schema.installation import install
from sluicegate.postgres.schema.opened import migrations, newest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate import Message
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

STREAMS = migrations()[:1]
MESSAGE = {"type": "happened", "data": {"n": 1}}


@pytest.fixture
def log(embedded_postgres: EmbeddedPostgres) -> Log:
    """A schema that is not installed."""
    return Log(embedded_postgres.dsn, fresh_name())


@asynccontextmanager
async def _appender(log: Log) -> AsyncGenerator[tuple[Any, Any]]:
    """A log of the previous release with a message; connections of its appender and of its
    owner.
    """
    async with role(log) as app, log.connected() as owner:
        roles: Any = {"append": [app.name], "subscribe": [app.name]}
        await install(owner, log.schema, library="1.0", roles=roles, history=STREAMS)
        await log.append(owner, "order-1", 1)
        con = await asyncpg.connect(app.dsn)
        try:
            yield con, owner
        finally:
            await con.close()


async def test_an_upgrade_keeps_messages_positions_and_rights(
    log: Log, real_clock: LoopClock
) -> None:
    async with _appender(log) as (con, owner):
        (problem,) = await check_streams(log.dsn, schema=log.schema)
        assert problem.name == "older"
        with pytest.raises(ConfigError, match="sluicegate pg upgrade"):
            await install_streams(log.dsn, schema=log.schema)
        await con.execute(f"INSERT INTO {log.sql}.subscription VALUES ('bills', '', '')")
        await con.execute(f"INSERT INTO {log.sql}.subscription_slot VALUES ('bills', 0, 2)")
        planned = await upgrade_streams(log.dsn, schema=log.schema, dry_run=True)
        assert await upgrade_streams(log.dsn, schema=log.schema) == planned
        assert await upgrade_streams(log.dsn, schema=log.schema) == []
        assert await check(owner, log.schema) == []
        assert await append(con, log.sql, "order-1", [MESSAGE]) == [2]
        assert await con.fetchval(f"SELECT {log.sql}.horizon()") == 2
        assert await con.fetchval(f"SELECT position FROM {log.sql}.subscription_slot") == 2
        await create(owner, log, "q")
        await insert(owner, log, "q", ("k", 1))
        assert await handled(owner, log, "q") == [1]
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await insert(con, log, "q", ("k", 1))


async def test_an_upgrade_waits_for_no_appender_and_none_for_it(
    log: Log, real_clock: LoopClock
) -> None:
    """A transaction that appends and a prepared statement continue during the upgrade."""
    async with _appender(log) as (con, owner):
        await con.execute("SET lock_timeout = 1")
        statement = await con.prepare(f"SELECT r_position FROM {log.sql}.append($1, $2)")
        messages = '[{"type": "happened", "data": 1}]'
        async with con.transaction():
            assert await statement.fetchval("order-1", messages) == 2
            await upgrade_streams(log.dsn, schema=log.schema)
            assert await statement.fetchval("order-1", messages) == 3
            assert await owner.fetchval(f"SELECT {log.sql}.horizon()") == 1
        assert await statement.fetchval("order-1", messages) == 4
        assert await owner.fetchval(f"SELECT {log.sql}.horizon()") == 4
        rows = await con.fetch(
            f"SELECT r_position FROM {log.sql}.append_new($1, $2, $3, $4, $5)",
            *(["order-2"], ["happened"], ["1"], ["{}"], ["7b0cc2a3-5d4c-4d6e-8a53-0f5a4d1d1b9c"]),
        )
        assert [row["r_position"] for row in rows] == [5]
        await con.execute(
            f"INSERT INTO {log.sql}.message (stream, version, type, data) VALUES ('s', 0, 't', '1')"
        )
        assert await owner.fetchval(f"SELECT {log.sql}.horizon()") == 6


async def test_roles_are_given_rights_on_queues_after_an_upgrade(
    log: Log, real_clock: LoopClock
) -> None:
    async with _appender(log) as (_, owner), role(log) as app:
        await upgrade_streams(log.dsn, schema=log.schema)
        for right in ("enqueue", "work", "operate"):
            await install_streams(log.dsn, schema=log.schema, **{right: app.name})  # type: ignore[arg-type]  # a right's name
        rows = await owner.fetch(
            f"SELECT rights FROM {log.sql}.grantee WHERE role = $1 ORDER BY 1", app.name
        )
        assert [row["rights"] for row in rows] == ["enqueue", "operate", "work"]
        assert await check(owner, log.schema) == []


async def test_a_worker_of_the_release_before_fires_schedules_after_an_upgrade(
    log: Log, real_clock: LoopClock
) -> None:
    """A job that was claimed before it is settled after it."""
    async with role(log) as app, role(log) as operator, log.connected() as owner:
        await install(owner, log.schema, library="1.0", history=migrations()[:2])
        given = [(app.name, "work"), (operator.name, "operate")]
        await owner.executemany(f"INSERT INTO {log.sql}.grantee VALUES ($1, $2)", given)
        await create(owner, log, "q")
        await insert(owner, log, "q", ("k", 1))
        leased = await claim(owner, log, "q")
        await upgrade_streams(log.dsn, schema=log.schema)
        assert await check(owner, log.schema) == []
        assert await settle(owner, log, "q", leased, "free", leased) == ["empty"]
        async with QueueAdmin(operator.dsn, schema=log.schema) as admin:
            await (await admin.schedules("q")).put("often", every=1)

        async def handle(message: Message) -> None:
            consumer.stop()

        consumer = Consumer(PostgresQueueSource(app.dsn, queue="q", schema=log.schema), name="test")
        await consumer.run(handle)


def test_the_command_upgrades(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    async def older() -> None:
        async with log.connected() as con:
            await install(con, log.schema, library="1.0", history=STREAMS)
            await log.append(con, "order-1", 1)

    asyncio.run(older())
    at = ("--schema", log.schema)
    assert main(["pg", "check", log.dsn, *at]) == 1
    assert f"at version 1, this release needs {newest()}" in capsys.readouterr().out
    assert main(["pg", "upgrade", log.dsn, *at, "--dry-run"]) == 0
    assert f"CREATE TABLE {log.sql}.job (" in capsys.readouterr().out
    assert main(["pg", "upgrade", log.dsn, *at]) == 0
    assert capsys.readouterr().err == f"{log.schema} is upgraded\n"
    assert main(["pg", "check", log.dsn, *at]) == 0
