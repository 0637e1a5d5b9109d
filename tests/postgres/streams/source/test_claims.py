"""The slots that a process claims, their order, and when it releases them.

White box: shorter intervals, and the slot of a stream.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.postgres.streams.source.claims_help import (
    NAME,
    PlainLocks,
    lock_of,
    partition_of,
    plain,
    read_through,
    visits,
)
from tests.postgres.streams.source.test_failures import WITHIN, fetched, source

from sluicegate._core.subscriptions import locked_slot, slot_lock
from sluicegate.consumer import MemorySubscriptions, Position
from sluicegate.postgres import PostgresSubscriptions
from sluicegate.postgres.streams import options
from sluicegate.postgres.streams.selection import slot_of
from sluicegate.testing.conformance.source.subject import News, RecordingHost

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")

STREAMS = ["a", "b", "c", "d"]
"""They are in four slots."""


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make processes that share evenly look for changes at short intervals."""
    monkeypatch.setattr(options, "CHECK_EVERY", 0.02)


async def test_a_position_that_moved_before_the_lock_is_read_again(log: Log) -> None:
    """S2, S-T3: another process handles messages between the look and the lock, then ends."""
    first, second = RecordingHost(), RecordingHost()
    ahead = plain(log, PostgresSubscriptions(log.dsn, schema=log.schema), slots_at_once=256)
    subscriptions = PostgresSubscriptions(log.dsn, schema=log.schema)
    locks = PlainLocks(subscriptions)
    locks.may_go.clear()
    late = plain(log, subscriptions, locks=locks, slots_at_once=256)
    partition = partition_of(log, "a")
    async with asyncio.timeout(WITHIN), log.connected() as con, AsyncExitStack() as stack:
        await log.append(con, "a", 1, 2)
        async with ahead.open(first):
            await first.wait_for_claims(256)
            assert await fetched(ahead, first) == [1, 2]
            await stack.enter_async_context(late.open(second))
            await locks.asked.wait()
            claim = first.claim_of(partition)
            assert [*await ahead.commit({claim: Position(2)})] == [claim]
        locks.may_go.set()
        await second.wait_for_claims(256)
        assert second.claim_of(partition).start == Position(2)
        assert await fetched(late, second) == [2]


async def unread_by_time(log: Log) -> None:
    """Two messages in each stream, whose order by time differs from that by position: the first
    ones of the streams, by time, are c, a, b, d.
    """
    async with log.connected() as con:
        for stream in STREAMS * 2:
            await log.append(con, stream, 1)
        for stream, seconds in zip("cabd", range(4), strict=True):
            await con.execute(
                f"UPDATE {log.sql}.message SET at = timestamptz '2026-01-01' + $2 * interval '1 s' "
                "WHERE stream = $1 AND version = 0",
                stream,
                seconds,
            )


async def test_slots_are_claimed_by_the_time_of_their_oldest_unread_message(log: Log) -> None:
    """S3, S-T4, P5: the oldest first, and each once before any is claimed again."""
    await unread_by_time(log)
    host = RecordingHost()
    async with (
        asyncio.timeout(WITHIN),
        plain(log, MemorySubscriptions(), slots_at_once=1).open(host),
    ):
        await host.news.wait_for(lambda: len(host.claims) >= 8)
    assert visits(host)[:8] == [slot_of(stream) for stream in "cabdcabd"]


async def test_a_slot_that_another_has_is_skipped_and_delays_no_other_one(log: Log) -> None:
    """S-T4, P5: the others are claimed in turn, as if it did not exist; when it becomes free, it is
    the first.
    """
    await unread_by_time(log)
    subscriptions, host = MemorySubscriptions(), RecordingHost()
    other = MemorySubscriptions(shared_with=subscriptions)
    async with asyncio.timeout(WITHIN):
        assert await other.lock([lock_of("a")])
        async with plain(log, subscriptions, slots_at_once=1).open(host):
            await host.news.wait_for(lambda: len(host.claims) >= 9)
            assert visits(host)[:9] == [slot_of(stream) for stream in "cbd" * 3]
            begun = len(host.claims)
            await other.unlock([lock_of("a")])
            await host.news.wait_for(lambda: slot_of("a") in visits(host)[begun:])
            assert visits(host)[begun:].index(slot_of("a")) <= 1


@pytest.mark.parametrize(("processes", "at_once"), [(1, 3), (5, 1), (7, 2)])
async def test_no_slot_starves_however_many_processes_take_turns(
    log: Log, processes: int, at_once: int
) -> None:
    """P5: although no slot is ever read to its end, so that those of the oldest messages become
    free repeatedly. Each slot is claimed before a process claims any slot for the third time.
    """
    streams = [f"s-{number}" for number in range(20)]
    slots = {slot_of(stream) for stream in streams}
    first, news = MemorySubscriptions(), News()
    hosts = [RecordingHost(news) for _ in range(processes)]
    others = [MemorySubscriptions(shared_with=first) for _ in hosts[1:]]
    async with asyncio.timeout(WITHIN), AsyncExitStack() as stack:
        pool = await stack.enter_async_context(asyncpg.create_pool(log.dsn, min_size=1, max_size=2))
        for stream in streams:
            await log.append(pool, stream, 1)
        for subscriptions, host in zip([first, *others], hosts, strict=True):
            made = plain(log, subscriptions, pool=pool, slots_at_once=at_once)
            await stack.enter_async_context(made.open(host))

        def visited() -> list[int]:
            return [slot for host in hosts for slot in visits(host)]

        await news.wait_for(lambda: slots == {*visited()})
        assert max(visits(host).count(slot) for host in hosts for slot in slots) <= 2


@pytest.mark.parametrize(("hold", "unread"), [(WITHIN, "cd"), (0.0, "c")])
async def test_a_slot_is_kept_for_its_time_and_idle_ones_are_given_up_first(
    log: Log, hold: float, unread: str
) -> None:
    """P5: with unread messages for `hold` seconds; without, as soon as another slot has some."""
    subscriptions, host = MemorySubscriptions(), RecordingHost()
    made = plain(log, subscriptions, slots_at_once=2, hold=hold)
    async with asyncio.timeout(WITHIN), log.connected() as con:
        await log.append(con, "a", 1, 2)
        await log.append(con, "b", 1)
        async with made.open(host):
            await host.news.wait_for(lambda: {*visits(host)} == {slot_of("a"), slot_of("b")})
            assert await read_through(made, host, 2) == [1, 2]
            assert await read_through(made, host, 2) == [3]
            async with con.transaction():
                for stream in ["a", *unread]:
                    await log.append(con, stream, 3)
            await host.news.wait_for(lambda: slot_of("c") in visits(host))
            await host.news.wait_for(lambda: len(host.open) == 2)
            held = {claim.partition.partition for claim in host.open}
            assert held == {slot_of("a"), slot_of("c")}, "b was idle"
            assert len(host.claims) == 3


async def test_shares_are_even_when_processes_join_and_leave(log: Log, looks_often: None) -> None:
    """P5: also the shares of slots with unread messages; the first process keeps those with the
    oldest ones.
    """
    streams = [f"s-{number}" for number in range(16)]
    unread = [slot_of(stream) for stream in streams]
    hosts = [RecordingHost() for _ in range(3)]
    async with asyncio.timeout(WITHIN), log.connected() as con, source(log).open(hosts[0]):
        for stream in streams:
            await log.append(con, stream, 1)
        await hosts[0].wait_for_claims(256)
        async with source(log).open(hosts[1]):
            for host in hosts[:2]:
                await host.wait_for_claims(128)
            held = [claim.partition.partition for claim in hosts[0].open]
            assert [slot for slot in unread if slot in held] == unread[:8]
            async with source(log).open(hosts[2]):
                for host, share in zip(hosts, [86, 86, 84], strict=True):
                    await host.wait_for_claims(share)
            for host in hosts[:2]:
                await host.wait_for_claims(128)
        await hosts[0].wait_for_claims(256)


async def test_more_processes_than_slots_wait_until_one_leaves(log: Log, looks_often: None) -> None:
    """P5: each slot has a process, and a waiting process gets its turn."""
    hosts = [RecordingHost() for _ in range(4)]
    made = [source(log, streams=["a", "b"]) for _ in hosts]
    async with asyncio.timeout(WITHIN), AsyncExitStack() as stack:
        async with made[0].open(hosts[0]):
            await hosts[0].wait_for_claims(2)
            for each, host in zip(made[1:], hosts[1:], strict=True):
                await stack.enter_async_context(each.open(host))
            await hosts[0].wait_for_claims(1)
        news = [asyncio.create_task(host.wait_for_claims(1)) for host in hosts[1:]]
        done = 0
        for first in asyncio.as_completed(news):
            await first
            if (done := done + 1) == 2:
                break
        for waiting in news:
            waiting.cancel()
        held = [claim.partition.partition for host in hosts[1:] for claim in host.open]
        assert sorted(held) == sorted({slot_of("a"), slot_of("b")})


async def test_the_slots_of_a_process_that_died_pass_to_the_others(
    log: Log, looks_often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5, S-T8: once its leases have expired; until then they are skipped. The times in the tables
    are moved instead of waiting.
    """
    host, tried, lock = RecordingHost(), asyncio.Event(), PostgresSubscriptions.lock

    async def noted(locks: PostgresSubscriptions, names: Collection[str]) -> Collection[str]:
        found = await lock(locks, names)
        tried.set()
        return found

    monkeypatch.setattr(PostgresSubscriptions, "lock", noted)
    async with asyncio.timeout(WITHIN), log.connected() as con, source(log).open(host):
        await host.wait_for_claims(256)
        async with PostgresSubscriptions(log.dsn, schema=log.schema) as dying:
            assert await dying.members(NAME) == 2
            await host.wait_for_claims(128)
            names = [slot_lock(NAME, slot) for slot in range(256)]
            taken: list[str] = []
            while len(taken) < 128:  # they are unlocked after their claims have ended
                taken += await dying.lock(names)
            _, slot = locked_slot(taken[0])
            owner = await con.fetchval(
                f"SELECT owner FROM {log.sql}.subscription_slot WHERE slot = $1", slot
            )
            tried.clear()
            await con.execute(
                f"UPDATE {log.sql}.subscription_member SET seen_at = seen_at - interval '2 min' "
                "WHERE member = $1",
                owner,
            )
            await tried.wait()
            assert len(host.open) == 128
            await con.execute(
                f"UPDATE {log.sql}.subscription_slot SET lease_until = clock_timestamp() "
                "WHERE owner = $1",
                owner,
            )
            await host.wait_for_claims(256)
        owners = await con.fetchval(
            f"SELECT count(DISTINCT owner) FROM {log.sql}.subscription_slot"
        )
        assert owners == 1
