"""The permissions of roles on queues, and their limits.

White box: the check that every client makes as it opens a schema.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.queues.jobs_help import claim, create, handled, insert, settle
from tests.postgres.streams.log_help import role

from sluicegate.postgres import QueueAdmin, check_streams, install_streams
from sluicegate.postgres.schema.opened import opened_schema

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

CLAIM = "SELECT * FROM {s}.claim_jobs('q', 'g', 'c', 1, 1, 1, 30)"
SETTLE = (
    "SELECT * FROM {s}.settle_jobs('q', '{{1}}', '{{k}}', '{{free}}', '{{1}}', '{{NULL}}', "
    "'{{NULL}}', '{{NULL}}', '{{NULL}}', '{{}}', '{{}}')"
)
FIRE = "SELECT {s}.fire_schedule('q', 'daily', 1, 60, '{{60}}', 120, NULL)"
OPERATE = (
    "SELECT {s}.park_lane('q', 'k', 'why')",
    "SELECT {s}.resume_lane('q', 'k', false, false)",
    "SELECT {s}.redrive_jobs('q', NULL, NULL, 10)",
    "SELECT {s}.cancel_jobs('q', '{{1}}')",
    "SELECT {s}.retry_jobs('q', '{{1}}')",
    "SELECT {s}.assign_ranges('q', 'g', '{{0}}', '{{65535}}', '{{c}}', true)",
    "SELECT {s}.ring_again(NULL)",
    "INSERT INTO {s}.schedule (queue, name, every, timezone, payload, catch_up) "
    "VALUES ('q', 'daily', 86400, 'UTC', '1', 'last')",
    "SELECT {s}.run_schedule('q', 'absent', NULL)",
    "UPDATE {s}.schedule SET paused = true",
    "DELETE FROM {s}.schedule",
)
WRITES = (
    "UPDATE {s}.job SET payload = '2'",
    "DELETE FROM {s}.job",
    "TRUNCATE {s}.job",
    "UPDATE {s}.lane SET lease = 9",
    "DELETE FROM {s}.lane",
    "INSERT INTO {s}.bell (queue, key, low, priority) VALUES ('q', 'k', 1, 0)",
    "DELETE FROM {s}.bell",
    "DELETE FROM {s}.finished_job",
    "UPDATE {s}.job_id SET place = 1",
    "DELETE FROM {s}.queueing_lock",
    "UPDATE {s}.ring_range SET consumer = 'c'",
    "DELETE FROM {s}.queue_member",
    "SELECT nextval('{s}.job_lease')",
    "SELECT setval('{s}.job_place', 1)",
    "SELECT {s}.merge_bells('q', 10, now())",
    "SELECT {s}.pick_lanes('q', 10, now())",
    "SELECT {s}.finish_jobs(NULL, '{{1}}', now())",
    "SELECT {s}.drop_cancelled(NULL, '{{k}}', '{{1}}', now())",
    "SELECT {s}.enqueue_ticks(NULL, '{{1}}', NULL, NULL)",
    "DROP TABLE {s}.job",
)
NOT_TO_ENQUEUE = (
    *WRITES,
    *OPERATE,
    CLAIM,
    SETTLE,
    "SELECT payload FROM {s}.job",
    "SELECT count(*) FROM {s}.job",
    "SELECT payload FROM {s}.finished_job",
    "SELECT payload FROM {s}.schedule",
    FIRE,
    "SELECT * FROM {s}.lane",
    "SELECT * FROM {s}.bell",
    "SELECT * FROM {s}.job_id",
    "INSERT INTO {s}.job (queue, payload) VALUES ('q', '1') RETURNING payload",
    "INSERT INTO {s}.job (queue, place, payload) VALUES ('q', 9, '1')",
    "INSERT INTO {s}.job (queue, payload, at) VALUES ('q', '1', now())",
    "INSERT INTO {s}.job (queue, payload, attempts) VALUES ('q', '1', 3)",
    "INSERT INTO {s}.job (queue, payload, lease) VALUES ('q', '1', 3)",
    "UPDATE {s}.queue SET paused = true",
    "INSERT INTO {s}.queue (name) VALUES ('mine')",
    "SELECT {s}.seen_consumer('q', 'g', 'c', 30)",
)
NOT_TO_WORK = (
    *WRITES,
    *OPERATE,
    "INSERT INTO {s}.job (queue, payload) VALUES ('q', '1')",
    "SELECT * FROM {s}.enqueue('q', '{{k}}', '{{1}}')",
    "UPDATE {s}.queue SET paused = true",
    "INSERT INTO {s}.queue (name) VALUES ('mine')",
    "SELECT * FROM {s}.append('s', '[]')",
    "SELECT data FROM {s}.message",
)
NOT_TO_OPERATE = (
    *WRITES,
    CLAIM,
    SETTLE,
    "SELECT * FROM {s}.enqueue('q', '{{k}}', '{{1}}')",
    "SELECT {s}.seen_consumer('q', 'g', 'c', 30)",
    FIRE,
    "DELETE FROM {s}.queue",
)


@asynccontextmanager
async def _app(log: Log, right: str) -> AsyncGenerator[tuple[Any, Any]]:
    """A connection of a role with one permission on a queue, and one of the owner."""
    async with role(log) as app, log.connected() as owner:
        await create(owner, log, "q")
        await install_streams(log.dsn, schema=log.schema, **{right: app.name})  # type: ignore[arg-type]  # a right's name
        assert await check_streams(log.dsn, schema=log.schema) == []
        con = await asyncpg.connect(app.dsn)
        try:
            await opened_schema(con, log.schema)
            yield con, owner
        finally:
            await con.close()


async def _refused(con: Any, log: Log, statements: tuple[str, ...]) -> None:
    for statement in statements:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await con.execute(statement.format(s=log.sql))


async def test_a_role_that_enqueues_neither_reads_nor_claims_nor_chooses_a_place(
    log: Log, real_clock: LoopClock
) -> None:
    async with _app(log, "enqueue") as (con, owner):
        await insert(con, log, "q", ("k", "by INSERT"), (None, "without a key"))
        columns = ["queue", "key", "payload", "headers", "priority", "id", "queueing_lock"]
        job_id = "7b0cc2a3-5d4c-4d6e-8a53-0f5a4d1d1b9c"
        job = ("q", "k", '"by COPY"', "{}", 0, job_id, "lock")
        await con.copy_records_to_table(
            "job", schema_name=log.schema, columns=columns, records=[job]
        )
        rows = await con.fetch(
            f"SELECT r_state FROM {log.sql}.enqueue('q', $1, $2, p_ids => $3)",
            ["k", "k"],
            ['"known"', '"by the function"'],
            [job_id, None],
        )
        assert [row["r_state"] for row in rows] == ["known", "new"]
        assert await con.fetchval(f"SELECT name FROM {log.sql}.queue") == "q"
        await _refused(con, log, NOT_TO_ENQUEUE)
        expected = ["by INSERT", "by COPY", "by the function"]
        found = await handled(owner, log, "q")
        assert [each for each in found if each != "without a key"] == expected
        assert len(found) == 4


async def test_a_role_that_works_claims_and_settles_and_writes_no_table(
    log: Log, real_clock: LoopClock
) -> None:
    async with _app(log, "work") as (con, owner):
        await insert(owner, log, "q", ("k", 1), ("k", 2), (None, 3))
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.job") == 3
        rows = await claim(con, log, "q")
        assert [json.loads(row["r_payload"]) for row in rows] == [1, 2, 3]
        extend = (
            f"SELECT count(*) FROM {log.sql}.extend_leases('q', $1, $2, $3, 60) "
            "WHERE r_fate = 'kept'"
        )
        lease = rows[0]
        assert await con.fetchval(extend, [lease["r_lease"]], ["k"], [lease["r_place"]]) == 1
        assert "lost" not in await settle(con, log, "q", [rows[0], rows[2]], "free", rows)
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.job") == 0
        assert await con.fetchval(FIRE.format(s=log.sql)) is False
        seen = f"SELECT {log.sql}.seen_consumer('q', 'g', 'c', 30)"
        assert await con.fetchval(seen) == 1
        assert await con.fetchval(f"SELECT {log.sql}.balance_ranges('q', 'g', 0)") == 256
        await con.execute(f"SELECT {log.sql}.left_consumer('q', 'g', 'c')")
        await _refused(con, log, NOT_TO_WORK)


async def test_a_role_that_operates_changes_queues_and_neither_claims_nor_enqueues(
    log: Log, real_clock: LoopClock
) -> None:
    async with _app(log, "operate") as (con, owner):
        await insert(owner, log, "q", ("k", 1))
        await create(con, log, "mine", sticky=True)
        await con.execute(f"UPDATE {log.sql}.queue SET paused = false WHERE name = 'mine'")
        assert await con.fetchval(f"SELECT payload FROM {log.sql}.job") == "1"
        for statement in OPERATE:
            await con.execute(statement.format(s=log.sql))
        await _refused(con, log, NOT_TO_OPERATE)
        assert await handled(owner, log, "q") == [1]


async def test_a_role_that_operates_uses_every_command(log: Log, real_clock: LoopClock) -> None:
    """Automatic ranges and retention write to other tables."""
    async with role(log) as app, log.connected() as owner:
        await create(owner, log, "q", sticky=True)
        await insert(owner, log, "q", ("k", 1))
        await install_streams(log.dsn, schema=log.schema, operate=app.name)
        async with QueueAdmin(app.dsn, schema=log.schema) as admin:
            routing = await admin.routing("q", "g")
            await routing.move(0, 100, "c")
            await routing.balance()
            await (await admin.jobs("q")).apply_retention()
            assert await (await admin.jobs("q")).purge("waiting") == 1


async def test_a_role_of_queues_alone_is_told_that_messages_were_not_checked(
    log: Log, real_clock: LoopClock
) -> None:
    async with role(log) as app:
        for right, unread in (("enqueue", "messages and jobs"), ("work", "messages")):
            await install_streams(log.dsn, schema=log.schema, **{right: app.name})  # type: ignore[arg-type]  # a right's name
            (problem,) = await check_streams(app.dsn, schema=log.schema)
            assert (problem.name, problem.is_note) == ("not-readable", True)
            assert f"may not read {unread}, so" in problem.text
