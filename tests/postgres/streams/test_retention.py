"""Retention: messages that subscriptions need stay, versions continue, and lost messages are
counted.

White box: a selection as it is stored, and the type of the result.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.served_help import consumed, subscribe

from sluicegate import ConfigError, RefusedError
from sluicegate.errors import VersionConflict
from sluicegate.postgres import NewMessage, StreamLog, StreamMonitor, StreamReader, StreamRetention
from sluicegate.postgres.streams.retention import Deleted
from sluicegate.postgres.streams.selection import StreamSelection

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log


async def left(log: Log, con: Any) -> list[int]:
    """The numbers of the remaining messages."""
    reader = StreamReader(con, schema=log.schema)
    return [message.data["n"] async for message in reader.scan()]


async def missed(log: Log, con: Any, name: str) -> int:
    query = f"SELECT sum(missed)::int FROM {log.sql}.subscription_slot WHERE name = $1"
    return int(await con.fetchval(query, name))


async def waits_for_a_lock(log: Log, con: Any) -> None:
    """Return when the connection's statement waits for a lock."""
    waits = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
    async with asyncio.timeout(60.0), log.connected() as other:
        while not await other.fetch(waits, con.get_server_pid()):
            pass


async def test_messages_before_a_position_are_deleted_in_batches(
    log: Log, real_clock: object
) -> None:
    async with log.connected() as con:
        positions = await log.append(con, "a", *range(10))
        retention = StreamRetention(log.schema)
        assert await retention.delete(con, before=positions[7], batch=3) == Deleted(7, 0)
        assert await left(log, con) == [7, 8, 9]
        assert await retention.delete(con, before=positions[7], batch=3) == Deleted(0, 0)


async def test_messages_older_than_a_time_are_deleted(log: Log, real_clock: object) -> None:
    """Also out of position order, if a clock has jumped."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    async with log.connected() as con:
        for number, day in enumerate([0, 1, 9, 2, 5, 3]):
            await con.execute(
                f"INSERT INTO {log.sql}.message (stream, version, type, data, at) "
                "VALUES ('a', $1, 't', jsonb_build_object('n', $1::bigint), $2)",
                number,
                begin + timedelta(days=day),
            )
        retention = StreamRetention(log.schema)
        limit = begin + timedelta(days=3)
        assert await retention.delete(con, older_than=limit, batch=2) == Deleted(3, 0)
        assert await left(log, con) == [2, 4, 5]


async def test_what_a_subscription_has_not_handled_stays_unless_forced(
    log: Log, real_clock: object
) -> None:
    """The count is returned, and each subscription counts the messages it missed."""
    async with log.connected() as con:
        positions = await log.append(con, "a", *range(10))
        await subscribe(log, con, "fast", positions[8])
        await subscribe(log, con, "slow", positions[4])
        await subscribe(log, con, "other", 0, StreamSelection.of("b"))
        retention = StreamRetention(log.schema)
        assert await retention.delete(con, before=positions[9], batch=2) == Deleted(4, 5)
        assert await left(log, con) == [4, 5, 6, 7, 8, 9]
        assert await missed(log, con, "slow") == 0
        assert await retention.delete(con, before=positions[9], force=True) == Deleted(5, 0)
        assert await left(log, con) == [9]
        lost = [await missed(log, con, name) for name in ("fast", "slow", "other")]
        assert lost == [1, 5, 0]


async def test_each_slot_counts_for_itself(log: Log, real_clock: object) -> None:
    """A slot whose position is far behind because it has no messages keeps no message of other
    slots.
    """
    async with log.connected() as con:
        positions = await log.append(con, "a", *range(5))
        await subscribe(log, con, "s", 0)
        await con.execute(
            f"UPDATE {log.sql}.subscription_slot SET position = $1 "
            f"WHERE slot = {log.sql}.slot_of('a')",
            positions[-1] + 1,
        )
        assert await StreamRetention(log.schema).delete(con, before=10**6) == Deleted(5, 0)


async def test_versions_go_on_behind_deleted_messages(log: Log, real_clock: object) -> None:
    async with log.connected() as con:
        stream_log, retention = StreamLog(log.schema), StreamRetention(log.schema)
        await log.append(con, "a", *range(3))
        assert await retention.delete(con, before=10**6) == Deleted(3, 0)
        with pytest.raises(VersionConflict):
            await stream_log.append(con, "a", NewMessage("t", {}), expected=-1)
        (third,) = await stream_log.append(con, "a", NewMessage("t", {"n": 3}), expected=2)
        (fourth,) = await stream_log.append(con, "a", NewMessage("t", {"n": 4}))
        assert (third.version, fourth.version) == (3, 4)
        assert await retention.delete(con, before=fourth.position) == Deleted(1, 0)
        assert await retention.delete_stream(con, "a") == Deleted(1, 0)
        (fifth,) = await stream_log.append(con, "a", NewMessage("t", {"n": 5}))
        assert fifth.version == 5


@pytest.mark.parametrize("whole_stream", [False, True])
async def test_a_forced_deletion_locks_slots_in_the_order_of_their_owners(
    log: Log, real_clock: object, whole_stream: bool
) -> None:
    """While it waits for the first one, it holds none of the others: there is no deadlock."""
    async with log.connected() as con, log.connected() as owner:
        for number in range(30):
            await log.append(con, "s" if whole_stream else f"s-{number}", number)
        for name in "edcab":
            await subscribe(log, con, name, 0)
        slots = f"{log.sql}.subscription_slot WHERE slot IN (SELECT slot FROM {log.sql}.message)"
        await owner.execute(
            f"BEGIN; SELECT FROM {slots} ORDER BY name, slot LIMIT 1 FOR NO KEY UPDATE"
        )
        retention = StreamRetention(log.schema)
        deleting = asyncio.create_task(
            retention.delete_stream(con, "s", force=True)
            if whole_stream
            else retention.delete(con, before=100, force=True)
        )
        await waits_for_a_lock(log, con)
        await owner.execute(f"SELECT FROM {slots} FOR NO KEY UPDATE NOWAIT; COMMIT")
        assert await deleting == Deleted(30, 0)
        assert {name: await missed(log, con, name) for name in "abcde"} == dict.fromkeys(
            "abcde", 30
        )


async def test_a_stream_is_deleted_as_a_whole_or_not_at_all(log: Log, real_clock: object) -> None:
    async with log.connected() as con:
        positions = await log.append(con, "a", *range(4))
        await log.append(con, "b", 9)
        await subscribe(log, con, "s", positions[2])
        retention = StreamRetention(log.schema)
        assert await retention.delete_stream(con, "a", batch=1) == Deleted(0, 2)
        assert await left(log, con) == [0, 1, 2, 3, 9]
        assert await retention.delete_stream(con, "a", force=True) == Deleted(4, 0)
        assert await left(log, con) == [9]
        assert await missed(log, con, "s") == 2
        assert await retention.delete_stream(con, "a") == Deleted(0, 0)


async def test_a_stream_is_deleted_in_batches_whose_progress_is_told(
    log: Log, real_clock: object
) -> None:
    async with log.connected() as con:
        await log.append(con, "a", *range(5))
        await subscribe(log, con, "s", 0)
        told: list[Deleted] = []
        retention = StreamRetention(log.schema)
        done = await retention.delete_stream(con, "a", force=True, batch=2, on_batch=told.append)
        assert done == Deleted(5, 0)
        assert told == [(2, 0), (4, 0), (5, 0)]
        assert await missed(log, con, "s") == 5
        positions = await log.append(con, "a", *range(5))
        told.clear()
        done = await retention.delete(
            con, before=positions[3], force=True, batch=2, on_batch=told.append
        )
        assert done == Deleted(3, 0)
        assert told == [(2, 0), (3, 0)]


async def test_a_deletion_of_a_stream_ends_when_a_new_subscription_needs_the_rest(
    log: Log, real_clock: object
) -> None:
    async with log.connected() as con:
        positions = await log.append(con, "a", *range(5))

        async def begin() -> None:
            async with log.connected() as other:
                await subscribe(log, other, "s", positions[3])

        def between(done: Deleted) -> None:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: asyncio.run(begin())).result()

        retention = StreamRetention(log.schema)
        assert await retention.delete_stream(con, "a", batch=2, on_batch=between) == Deleted(2, 2)
        assert await left(log, con) == [2, 3, 4]


@pytest.mark.parametrize("whole_stream", [False, True])
async def test_a_cancelled_deletion_leaves_whole_batches_and_a_later_one_goes_on(
    log: Log, real_clock: object, whole_stream: bool
) -> None:
    """The second batch waits for a message's row when it is cancelled: it is rolled back."""
    async with log.connected() as con, log.connected() as other:
        positions = await log.append(con, "a", *range(10))
        await subscribe(log, con, "s", 0)
        retention = StreamRetention(log.schema)

        async def delete() -> Deleted:
            if whole_stream:
                return await retention.delete_stream(con, "a", force=True, batch=4)
            return await retention.delete(con, before=10**6, force=True, batch=4)

        await other.execute(
            f"BEGIN; SELECT FROM {log.sql}.message WHERE position = {positions[5]} FOR UPDATE"
        )
        deleting = asyncio.create_task(delete())
        await waits_for_a_lock(log, con)
        deleting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deleting
        assert await left(log, con) == [4, 5, 6, 7, 8, 9]
        assert await missed(log, con, "s") == 4
        await other.execute("ROLLBACK")
        assert await delete() == Deleted(6, 0)
        assert await missed(log, con, "s") == 10
        (after,) = await StreamLog(log.schema).append(con, "a", NewMessage("t", {}))
        assert after.version == 10


async def test_a_consumer_goes_on_behind_what_a_forced_deletion_took_and_the_loss_is_told(
    log: Log, real_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """In its log, and in the monitor's figures."""
    async with log.connected() as con, StreamMonitor(log.dsn, schema=log.schema) as monitor:
        handled = await log.append(con, "a", 0, 1)
        assert await consumed(log) == handled
        lost = await log.append(con, "a", 2, 3, 4)
        (last,) = await log.append(con, "a", 5)
        retention = StreamRetention(log.schema)
        assert await retention.delete(con, before=last, force=True) == Deleted(5, 0)
        assert await consumed(log) == [last]
        assert f"s: {len(lost)} messages were deleted before the subscription" in caplog.text
        found = (await monitor.poll()).subscriptions["s"]
        assert found.missed == len(lost)
        assert found.backlog is not None
        assert found.backlog.messages == 0


async def test_an_append_beside_a_deletion_has_the_next_version(
    log: Log, real_clock: object
) -> None:
    """An appender whose transaction began earlier, and one that commits later."""
    async with log.connected() as con, log.connected() as other:
        await log.append(con, "a", 0, 1)
        appending = other.transaction()
        await appending.start()
        await log.append(other, "a", 2)
        assert await StreamRetention(log.schema).delete_stream(con, "a") == Deleted(2, 0)
        await appending.commit()
        (after,) = await StreamLog(log.schema).append(con, "a", NewMessage("t", {"n": 3}))
        assert after.version == 3
        assert await left(log, con) == [2, 3]


async def test_a_deleted_id_is_forgotten(log: Log, real_clock: object) -> None:
    async with log.connected() as con:
        once = NewMessage("t", {"n": 1}, id="00000000-0000-4000-8000-000000000001")
        await StreamLog(log.schema).append(con, "a", once)
        await StreamRetention(log.schema).delete_stream(con, "a")
        (again,) = await StreamLog(log.schema).append(con, "a", once)
        assert again.is_new
        assert again.version == 1


async def test_bad_arguments_and_missing_rights_are_named(log: Log, real_clock: object) -> None:
    retention = StreamRetention(log.schema)
    async with log.connected() as con:
        with pytest.raises(ConfigError, match="older_than=None: must be given"):
            await retention.delete(con)
        with pytest.raises(ConfigError, match=r"older_than=.*aware"):
            await retention.delete(con, older_than=datetime(2026, 1, 1))
        with pytest.raises(ConfigError, match="before=-1"):
            await retention.delete(con, before=-1)
        role = f"reader_of_{log.schema}"
        await con.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {log.sql} TO {role}")
        try:
            async with con.transaction():
                await con.execute(f"SET LOCAL ROLE {role}")
                with pytest.raises(RefusedError, match=r"not allowed.* the role that installed"):
                    await retention.delete(con, before=10**6)
        finally:
            await con.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
