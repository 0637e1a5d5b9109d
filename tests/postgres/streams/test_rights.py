"""The permissions of roles on a log, and their limits.

White box: the list of the schema's objects and of the permissions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.streams.log_help import Log, append, fresh_name, role

from sluicegate import ConfigError
from sluicegate.postgres import check_streams, install_streams, upgrade_streams
from sluicegate.postgres.schema.objects import schema_objects
from sluicegate.postgres.schema.opened import migrations, opened_schema
from sluicegate.postgres.schema.rights import GRANTS

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

INSERT = "INSERT INTO {s}.message (stream, version, type, data, id) VALUES"
NOT_TO_APPEND = (
    "SELECT count(*) FROM {s}.message",
    "SELECT data FROM {s}.message",
    "UPDATE {s}.message SET data = '2'",
    "DELETE FROM {s}.message",
    "TRUNCATE {s}.message",
    "INSERT INTO {s}.message (position, stream, version, type, data) VALUES (9, 's', 9, 't', '1')",
    "INSERT INTO {s}.message (stream, version, type, data, at) VALUES ('s', 9, 't', '1', now())",
    "INSERT INTO {s}.message (stream, version, type, data) VALUES ('s', 9, 't', '1') RETURNING data",
    "SELECT setval('{s}.position', 1)",
    "SELECT {s}.horizon()",
    "SELECT * FROM {s}.subscription",
    "SELECT * FROM {s}.delete_messages(0, 100, NULL, 10, true)",
    "INSERT INTO {s}.meta VALUES ('class', '1')",
    "DROP TABLE {s}.message",
)
NOT_TO_READ = (
    "SELECT * FROM {s}.append('s', '[]')",
    "INSERT INTO {s}.message (stream, version, type, data) VALUES ('s', 9, 't', '1')",
    "DELETE FROM {s}.message",
    "UPDATE {s}.message SET data = '2'",
    "SELECT nextval('{s}.position')",
    "SELECT * FROM {s}.known('s', '[]')",
)
NOT_TO_SUBSCRIBE = (*NOT_TO_READ, "SELECT * FROM {s}.delete_stream('s', -1, 9, 10, true)")
_WITHIN_QUEUES = (
    *("ring", "merge_bells", "make_lanes", "make_new_lanes", "enter_due", "open_ranges"),
    *("pick_lanes", "pick_sticky_lanes"),
    *("jobs_of_lane", "live_leases", "pick_loose", "pass_jobs", "finish_jobs", "bury_job"),
    *("drop_cancelled", "is_cancelled", "enqueue_ticks"),
    *("give_up", "lost_too_often", "settle_loose", "give_up_loose", "place_of_least", "move_part"),
    *("lease_base", "free_locks", "delete_job", "keep_lanes", "due_priority", "live_of"),
    "follow_clock",
)
FOR_THE_OWNER = frozenset({"known", "delete_messages", "delete_stream", "grantee", *_WITHIN_QUEUES})
"""Functions and tables that no right includes."""
SEQUENCES_OF_IDS = {"parked_id_seq"}


async def _refused(con: Any, log: Log, statements: tuple[str, ...]) -> None:
    for statement in statements:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await con.execute(statement.format(s=log.sql))


async def test_a_role_that_appends_neither_reads_nor_changes_nor_chooses_a_position(
    log: Log, real_clock: LoopClock
) -> None:
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, append=app.name)
        con = await asyncpg.connect(app.dsn)
        try:
            await opened_schema(con, log.schema)
            assert await append(con, log.sql, "s", [{"type": "t", "data": 1}]) == [1]
            columns = ["stream", "version", "type", "data", "metadata"]
            rows = [("s", version, "t", "1", "{}") for version in (1, 2)]
            await con.copy_records_to_table(
                "message", schema_name=log.schema, columns=columns, records=rows
            )
            await _refused(con, log, NOT_TO_APPEND)
        finally:
            await con.close()
        async with log.connected() as con:
            found = await con.fetch(f"SELECT position FROM {log.sql}.message ORDER BY 1")
            assert [row["position"] for row in found] == [1, 2, 3]


async def test_a_role_that_reads_writes_nothing(log: Log, real_clock: LoopClock) -> None:
    async with role(log) as app, log.connected() as owner:
        await log.append(owner, "s", 1)
        await install_streams(log.dsn, schema=log.schema, read=[app.name])
        con = await asyncpg.connect(app.dsn)
        try:
            await opened_schema(con, log.schema)
            assert await con.fetchval(f"SELECT {log.sql}.horizon()") == 1
            assert await con.fetchval(f"SELECT data ->> 'n' FROM {log.sql}.message") == "1"
            await _refused(con, log, NOT_TO_READ)
            await _refused(con, log, ("SELECT * FROM {s}.subscription",))
        finally:
            await con.close()


async def test_a_role_that_subscribes_stores_positions_and_changes_no_message(
    log: Log, real_clock: LoopClock
) -> None:
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, subscribe=(app.name,))
        con = await asyncpg.connect(app.dsn)
        try:
            assert await con.fetchval(f"SELECT {log.sql}.horizon()") == 0
            for table in ("subscription", "subscription_slot", "subscription_member", "parked"):
                await con.execute(f"DELETE FROM {log.sql}.{table}")
            await _refused(con, log, NOT_TO_SUBSCRIBE)
        finally:
            await con.close()


async def test_a_role_without_rights_is_told_at_opening_and_by_a_check(
    log: Log, real_clock: LoopClock
) -> None:
    async with role(log) as app:
        con = await asyncpg.connect(app.dsn)
        try:
            with pytest.raises(ConfigError, match=f"may not be used by the role '{app.name}'"):
                await opened_schema(con, log.schema)
        finally:
            await con.close()
        (problem,) = await check_streams(app.dsn, schema=log.schema)
        assert problem.name == "no-rights"
        assert f"--work or --operate {app.name}" in problem.advice


def test_every_function_and_table_is_for_a_role_or_for_the_owner() -> None:
    granted = {grant.name for grants in GRANTS.values() for grant in grants} - {""}
    there = {
        each.name
        for each in schema_objects()
        if each.kind in {"function", "table", "view", "sequence"}
    }
    assert there | SEQUENCES_OF_IDS == granted | FOR_THE_OWNER | SEQUENCES_OF_IDS
    assert not granted & FOR_THE_OWNER


async def test_what_the_migrations_create_is_what_the_catalogs_have(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con:
        rows = await con.fetch(
            "SELECT proname::text AS name FROM pg_proc WHERE pronamespace = to_regnamespace($1) "
            "UNION SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace($1) "
            "AND relkind IN ('r', 'v', 'S') AND relname <> ALL ($2::text[])",
            log.sql,
            [*SEQUENCES_OF_IDS],
        )
        kinds = {"function", "table", "view", "sequence"}
        expected = {each.name for each in schema_objects() if each.kind in kinds}
        assert {row["name"] for row in rows} == expected


async def test_no_superuser_is_needed_to_install(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    log = Log(embedded_postgres.dsn, fresh_name())
    async with role(log) as owner, role(log) as app, log.connected() as con:
        with pytest.raises(ConfigError, match=rf"cannot be created.*{owner.name}"):
            await install_streams(owner.dsn, schema=log.schema)
        await con.execute(f"CREATE SCHEMA {log.sql}")
        with pytest.raises(ConfigError, match=r"may not create in it.*ALTER SCHEMA"):
            await install_streams(owner.dsn, schema=log.schema)
        await con.execute(f"ALTER SCHEMA {log.sql} OWNER TO {owner.name}")
        await install_streams(owner.dsn, schema=log.schema, append=app.name)
        assert await check_streams(owner.dsn, schema=log.schema) == []

        await con.execute(f"GRANT CREATE ON DATABASE postgres TO {owner.name}")
        other = fresh_name()
        await install_streams(owner.dsn, schema=other)
        assert await check_streams(owner.dsn, schema=other) == []


async def test_only_the_owner_upgrades_and_gives_rights(log: Log, real_clock: LoopClock) -> None:
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, read=app.name)
        with pytest.raises(ConfigError, match="belongs to the role 'postgres'"):
            await install_streams(app.dsn, schema=log.schema, append=app.name)
        with pytest.raises(ConfigError, match="belongs to the role 'postgres'"):
            await upgrade_streams(app.dsn, schema=log.schema)


async def test_a_role_that_does_not_exist_gets_nothing(log: Log, real_clock: LoopClock) -> None:
    for name in ("nobody_there", "public"):
        with pytest.raises(ConfigError, match=f"read='{name}': is not a role"):
            await install_streams(log.dsn, schema=log.schema, read=name)
    with pytest.raises(ConfigError, match="append="):
        await install_streams(log.dsn, schema=log.schema, append=3)  # type: ignore[arg-type]
    assert len(migrations()) > 0
