"""Leases and advisory locks in the schema of a log.

White box: the name of a slot's lock, and the start of a subscription.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.postgres.streams.log_help import Log, install_log
from tests.postgres.subscriptions.frozen import LOCK, NAME, START, frozen_holder, moves

from sluicegate import ClosedError, ConfigError
from sluicegate._core.subscriptions import SubscriptionStart, slot_lock
from sluicegate.consumer import Position
from sluicegate.postgres import PostgresAccess, PostgresAdvisoryLocks, PostgresSubscriptions
from sluicegate.testing import embedded_postgres as own_server

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock

PASSWORD = "hidden-by-all"


async def test_the_store_of_a_frozen_process_changes_nothing(
    log: Log, real_clock: LoopClock
) -> None:
    """P2, S-T11: it is frozen beyond its lease, and resumes when another process has the lock."""
    async with PostgresSubscriptions(log.dsn, schema=log.schema) as mine:
        await mine.initialize(NAME, START)
        async with frozen_holder("postgres", log.dsn, log.schema, "0.5") as holder:
            async with log.connected() as con:
                await con.execute(
                    "SELECT pg_sleep_until(lease_until) "
                    f"FROM {log.sql}.subscription_slot WHERE slot = 7"
                )
            assert [*await mine.lock([LOCK])] == [LOCK]
            holder.resume()
            assert await holder.answer() == {"stored": [], "kept": []}
            assert [*await mine.store(NAME, moves(0, 5))] == [7]
            found = await mine.read(NAME)
            assert found is not None
            assert found.positions[7] == Position(5)


async def test_a_row_that_another_transaction_has_is_not_waited_for(
    log: Log, real_clock: LoopClock
) -> None:
    """S-T4: the free rows are taken, and the other one is skipped."""
    other = slot_lock(NAME, 8)
    async with PostgresSubscriptions(log.dsn, schema=log.schema) as mine, log.connected() as con:
        await mine.initialize(NAME, START)
        async with con.transaction():
            await con.execute(f"SELECT FROM {log.sql}.subscription_slot WHERE slot = 7 FOR UPDATE")
            assert [*await mine.lock([LOCK, other])] == [other]
        assert [*await mine.lock([LOCK])] == [LOCK]


async def test_a_lock_whose_answer_was_lost_is_taken_again_by_its_owner_alone(
    log: Log, real_clock: LoopClock
) -> None:
    """S-T8: the end of the owner releases it."""
    async with PostgresSubscriptions(log.dsn, schema=log.schema) as other, log.connected() as con:
        await other.initialize(NAME, START)
        async with PostgresSubscriptions(log.dsn, schema=log.schema) as mine:
            second = slot_lock(NAME, 8)
            await mine.lock([LOCK])
            copied = f"UPDATE {log.sql}.subscription_slot s SET owner = o.owner, epoch = 1, "
            await con.execute(
                f"{copied} lease_until = o.lease_until FROM {log.sql}.subscription_slot o "
                "WHERE s.slot = 8 AND o.slot = 7"
            )
            assert [*await other.lock([second])] == []
            assert [*await mine.lock([second])] == [second]
            await con.execute(
                f"{copied} lease_until = o.lease_until FROM {log.sql}.subscription_slot o "
                "WHERE s.slot = 9 AND o.slot = 7"
            )
        all_three = [LOCK, second, slot_lock(NAME, 9)]
        assert {*await other.lock(all_three)} == {*all_three}


async def test_what_operators_change_is_read(log: Log, real_clock: LoopClock) -> None:
    """A pause of the whole subscription or of slots. A greater epoch ends a lease at once."""
    async with PostgresSubscriptions(log.dsn, schema=log.schema) as mine, log.connected() as con:
        await mine.initialize(NAME, SubscriptionStart(START.offsets, selection='{"category": "a"}'))
        await mine.lock([LOCK])
        await con.execute(f"UPDATE {log.sql}.subscription SET paused = true")
        slots = f"UPDATE {log.sql}.subscription_slot SET"
        await con.execute(f"{slots} paused = true WHERE slot IN (3, 4)")
        await con.execute(f"{slots} epoch = epoch + 1, lease_until = NULL, owner = NULL")
        found = await mine.read(NAME)
        assert found is not None
        assert (found.is_paused, found.paused_slots) == (True, frozenset({3, 4}))
        assert found.selection == '{"category": "a"}'
        assert [*await mine.store(NAME, moves(0, 9))] == []
        assert [*await mine.keep([LOCK])] == []


async def test_locks_of_a_subscription_that_was_not_started_are_not_free(
    log: Log, real_clock: LoopClock
) -> None:
    async with PostgresSubscriptions(log.dsn, schema=log.schema) as mine:
        assert [*await mine.lock([LOCK])] == []
        assert await mine.members(NAME) == 1
        with pytest.raises(ConfigError, match="SUBSCRIPTION/SLOT"):
            await mine.lock(["orders"])


async def test_members_that_no_longer_ask_are_forgotten(log: Log, real_clock: LoopClock) -> None:
    """By the server's clock."""
    async with PostgresSubscriptions(log.dsn, schema=log.schema) as mine, log.connected() as con:
        await mine.initialize(NAME, START)
        add = (
            f"INSERT INTO {log.sql}.subscription_member "
            "VALUES ($1, $2, clock_timestamp() - make_interval(secs => $3))"
        )
        for member, ago in (("lives", 10.0), ("ended", 31.0), ("long ago", 301.0)):
            await con.execute(add, NAME, member, ago)
        assert await mine.members(NAME) == 2
        rows = await con.fetch(f"SELECT member FROM {log.sql}.subscription_member")
        assert {"lives", "ended"} < {row["member"] for row in rows}
        assert "long ago" not in {row["member"] for row in rows}


@pytest.mark.parametrize("kind", [PostgresSubscriptions, PostgresAdvisoryLocks])
async def test_what_is_wrong_is_named_and_secrets_are_not(
    kind: type[PostgresSubscriptions | PostgresAdvisoryLocks], log: Log, real_clock: LoopClock
) -> None:
    host = log.dsn.partition("@")[2]
    wrong = kind(f"postgresql://postgres:{PASSWORD}@{host}", schema=log.schema)
    assert PASSWORD not in repr(wrong)
    with pytest.raises(ConfigError, match="let the role log in") as caught:
        async with wrong:
            pass
    assert PASSWORD not in str(caught.value)
    with pytest.raises(ConfigError, match="schema"):
        kind(log.dsn, schema="a b")
    with pytest.raises(ClosedError, match="async with"):
        await kind(log.dsn).lock([LOCK])


async def test_a_missing_schema_is_named_at_opening(log: Log, real_clock: LoopClock) -> None:
    with pytest.raises(ConfigError, match="sluicegate pg install"):
        async with PostgresSubscriptions(log.dsn, schema="missing"):
            pass


async def test_a_server_that_is_gone_at_the_end_is_logged(
    real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S-T8: the leases expire."""
    with own_server({"fsync": "off"}) as server:
        log = Log(server.dsn, "sluicegate")
        await install_log(log)
        async with PostgresSubscriptions(PostgresAccess(log.dsn, close_timeout=1.0)) as mine:
            await mine.initialize(NAME, START)
            await mine.lock([LOCK])
            await asyncio.to_thread(server.kill)
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert (
        "its locks could not be released; they expire with their leases within 30 s"
        in record.getMessage()
    )


async def test_advisory_locks_of_other_schemas_and_marks_are_other_locks(
    log: Log, real_clock: LoopClock
) -> None:
    """The horizon does not mistake a lock for an appender."""
    async with (
        PostgresAdvisoryLocks(log.dsn, schema=log.schema) as mine,
        PostgresAdvisoryLocks(log.dsn, schema="another") as other,
        log.connected() as con,
    ):
        names = [slot_lock(NAME, slot) for slot in range(256)]
        assert {*await mine.lock(names)} == {*await other.lock(names)} == {*names}
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.appender") == 0
        keys = "SELECT min(classid::bigint) FROM pg_locks WHERE locktype = 'advisory'"
        assert await con.fetchval(keys) >= 2**31


async def test_a_session_that_does_not_answer_has_lost_its_locks(
    real_clock: LoopClock,
) -> None:
    """P4, S-T8: the server is frozen. A new session acquires them when it resumes."""
    with own_server({"fsync": "off"}) as server:
        async with PostgresAdvisoryLocks(server.dsn, keep_every=0.5) as mine:
            assert [*await mine.lock([LOCK])] == [LOCK]
            await asyncio.to_thread(server.pause)
            try:
                assert [*await mine.keep([LOCK])] == []
                assert [*await mine.keep([LOCK])] == []
            finally:
                await asyncio.to_thread(server.resume)
            async with mine:
                assert {*await mine.lock([slot_lock(NAME, 8)])} == {slot_lock(NAME, 8)}
                assert {*await mine.keep([LOCK, slot_lock(NAME, 8)])} == {slot_lock(NAME, 8)}


async def test_an_unlock_that_failed_is_repeated(log: Log, real_clock: LoopClock) -> None:
    """S-T8: after the error the lock is still to be released; then another process acquires it."""
    async with (
        PostgresSubscriptions(log.dsn, schema=log.schema) as mine,
        PostgresSubscriptions(log.dsn, schema=log.schema) as other,
        log.connected() as con,
    ):
        await mine.initialize(NAME, START)
        assert [*await mine.lock([LOCK])] == [LOCK]
        table = f"{log.sql}.subscription_slot"
        await con.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT kept CHECK (lease_until IS NOT NULL) NOT VALID"
        )
        with pytest.raises(asyncpg.CheckViolationError):
            await mine.unlock([LOCK])
        await con.execute(f"ALTER TABLE {table} DROP CONSTRAINT kept")
        assert [*await other.lock([LOCK])] == []
        await mine.unlock([LOCK])
        assert [*await other.lock([LOCK])] == [LOCK]


async def test_a_keep_does_not_extend_a_lock_that_is_free(log: Log, real_clock: LoopClock) -> None:
    """S-T8: an unlock on the server precedes the keep."""
    async with (
        PostgresSubscriptions(log.dsn, schema=log.schema) as mine,
        PostgresSubscriptions(log.dsn, schema=log.schema) as other,
        log.connected() as con,
    ):
        await mine.initialize(NAME, START)
        assert [*await mine.lock([LOCK])] == [LOCK]
        await con.execute(
            f"UPDATE {log.sql}.subscription_slot SET owner = NULL, lease_until = NULL"
        )
        assert [*await mine.keep([LOCK])] == []
        assert [*await other.lock([LOCK])] == [LOCK]
