"""The installation of a log, and the errors of a missing or older one.

White box: installations on a connection, and the list of migrations.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.postgres.streams.log_help import Log, fresh_name

from sluicegate import ConfigError
from sluicegate.postgres.schema.installation import install, upgrade
from sluicegate.postgres.schema.opened import migrations, newest, opened_schema

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


async def test_a_log_is_installed_once_and_remembers_how(log: Log, real_clock: LoopClock) -> None:
    async with log.connected() as con:
        assert await install(con, log.schema, library="later") == []
        schema = await opened_schema(con, log.schema)
        rows = await con.fetch(f"SELECT version, name, checksum, library FROM {log.sql}.migration")
        assert [tuple(row) for row in rows] == [
            (each.version, each.name, each.checksum, "test") for each in migrations()
        ]
        assert schema.version == newest()
        assert await log.append(con, "order-1", 1, 2) == [1, 2]


async def test_installations_at_once_are_one(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    log = Log(embedded_postgres.dsn, fresh_name())

    async def one() -> bool:
        async with log.connected() as con:
            return bool(await install(con, log.schema, library="test"))

    assert sorted(await asyncio.gather(*(one() for _ in range(5)))) == [False] * 4 + [True]


async def test_opening_names_the_command_for_a_missing_or_older_schema(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        with pytest.raises(ConfigError, match=r"does not exist.*sluicegate pg install"):
            await opened_schema(con, "nowhere")
        with pytest.raises(ConfigError, match=r"no table of a log.*sluicegate pg install"):
            await opened_schema(con, "public")
        await con.execute(f"DELETE FROM {log.sql}.migration WHERE version = {newest()}")
        with pytest.raises(ConfigError, match="sluicegate pg upgrade DSN --schema"):
            await opened_schema(con, log.schema)
        with pytest.raises(ConfigError, match="sluicegate pg upgrade DSN --schema"):
            await install(con, log.schema, library="test")
        with pytest.raises(ConfigError, match="is not installed"):
            await upgrade(con, "nowhere", library="test")


async def test_two_logs_of_a_database_have_classes_of_their_own(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        other = fresh_name()
        await install(con, other, library="test")
        classes = {(await opened_schema(con, name)).mark_class for name in (log.schema, other)}
        assert len(classes) == 2


@pytest.mark.parametrize("name", ["", "pg_log", "a b", 'a"b', "a'b", "1a", "x" * 64, "a.b", None])
async def test_a_name_that_no_schema_can_have_is_refused(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, name: str
) -> None:
    log = Log(embedded_postgres.dsn, name)
    async with log.connected() as con:
        with pytest.raises(ConfigError, match="schema="):
            await install(con, name, library="test")
        with pytest.raises(ConfigError, match="schema="):
            await opened_schema(con, name)
