"""The locks of the Redis source, the start of its groups, and deleted entries.

White box: the clock of the source.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from tests.examples.example import load

from sluicegate.consumer import CountsLag, Position
from sluicegate.testing.conformance.source.subject import ClaimReader, RecordingHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.redis_server import RedisServer

pytestmark = [pytest.mark.usefixtures("real_clock"), pytest.mark.timeout(60)]

EXAMPLE = load("redis_streams_source")
LEASE = 1.5
TOPICS = itertools.count()


def new_topic() -> str:
    return f"locked-{next(TOPICS)}"


def source_of(url: str, topic: str, **options: Any) -> Any:
    given = {"lease": LEASE, **options}
    return EXAMPLE.RedisStreamsSource(url, topic, partitions=1, group="g", **given)


@asynccontextmanager
async def reading(url: str, topic: str, **options: Any) -> AsyncIterator[ClaimReader]:
    """An open source with its claim, without a consumer."""
    host, source = RecordingHost(), source_of(url, topic, **options)
    async with source.open(host):
        await host.wait_for_claims(1)
        yield ClaimReader(source, host)


async def add(redis: Redis, topic: str, *ids: str) -> None:
    for each in ids:
        await redis.xadd(f"{topic}:0", {"key": "k", "value": each}, id=each)


async def test_what_a_former_owner_sends_has_no_effect(server: RedisServer) -> None:
    """consumer/C:C3: Redis checks the lock within the read and the acknowledgement."""
    topic = new_topic()
    async with Redis.from_url(server.url) as redis, reading(server.url, topic) as reader:
        await add(redis, topic, "0-1", "0-2")
        (claim,) = reader.host.open
        await reader.read([claim], 2)
        await redis.set(f"{topic}:0:g:lock", "another", px=60_000)
        before = await redis.xinfo_groups(f"{topic}:0")
        assert before[0]["pending"] == 2
        claim.settle([0, 1])
        assert list(await reader.source.commit({claim: Position(2)})) == []
        assert claim.is_closed
        assert await redis.xinfo_groups(f"{topic}:0") == before

    async with (
        Redis.from_url(server.url) as redis,
        reading(server.url, new := new_topic()) as reader,
    ):
        (claim,) = reader.host.open
        await redis.set(f"{new}:0:g:lock", "another", px=60_000)
        await add(redis, new, "0-1")
        fetch = asyncio.get_running_loop().create_task(reader.source.fetch([claim], 10))
        await reader.host.news.wait_for(lambda: claim.is_closed)
        (group,) = await redis.xinfo_groups(f"{new}:0")
        assert (group["pending"], group["lag"]) == (0, 1)
        fetch.cancel()


async def test_a_lock_that_cannot_be_renewed_is_lost_before_its_lease_ends(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/C:R2: so no other process has it yet. It is acquired again after the outage. The
    first two thirds of the lease pass at once, by the source's clock.
    """
    topic, loop, lease, passed = new_topic(), asyncio.get_running_loop(), 3 * LEASE, 0.0
    monkeypatch.setattr(EXAMPLE.RedisStreamsSource, "_now", lambda _: loop.time() + passed)
    async with reading(own_server.url, topic, lease=lease) as reader:
        (claim,) = reader.host.open
        renewed = loop.time()
        await asyncio.to_thread(own_server.kill)
        passed = lease * 2 / 3
        await reader.host.news.wait_for(lambda: claim.is_closed)
        assert loop.time() + passed - renewed < lease
        assert reader.host.within == []
        await reader.host.news.wait_for(
            lambda: "Connect call failed" in (reader.host.reports[-1] or "")
        )
        await asyncio.to_thread(own_server.start)
        await reader.host.wait_for_claims(1)
        await reader.host.news.wait_for(lambda: reader.host.reports[-1] is None)


@pytest.mark.parametrize(
    ("start", "delivered"),
    [("0", ["5-1", "5-2", "9-1"]), ("$", []), ("5-1", ["5-2", "9-1"]), ("6", ["9-1"])],
)
async def test_a_new_group_begins_where_it_is_told(
    server: RedisServer, start: str, delivered: list[str]
) -> None:
    """The beginning, the end, after an entry, or at a time; a later start has no effect."""
    topic = new_topic()
    async with Redis.from_url(server.url) as redis:
        await add(redis, topic, "5-1", "5-2", "9-1")
        async with reading(server.url, topic, start=start):
            pass
        await add(redis, topic, "9-2")
        wanted = [*delivered, "9-2"]
        async with reading(server.url, topic, start="0") as reader:
            await reader.read(reader.host.open, len(wanted))
            records = reader.records(reader.host.open[0])
    assert [record.value for record in records] == [each.encode() for each in wanted]
    assert [record.timestamp for record in records] == [int(each[0]) for each in wanted]


async def test_entries_that_are_deleted_before_they_are_read_again_are_passed(
    server: RedisServer,
) -> None:
    """consumer/C:C2."""
    topic = new_topic()
    async with Redis.from_url(server.url) as redis:
        await add(redis, topic, "0-1", "0-2", "0-3")
        async with reading(server.url, topic) as reader:
            await reader.read(reader.host.open, 3)
        await redis.xdel(f"{topic}:0", "0-1", "0-3")
        async with reading(server.url, topic) as reader:
            (claim,) = reader.host.open
            await reader.read_up_to(claim, 3)
            assert reader.offsets(claim) == [1]
            claim.settle([1])
            assert list(await reader.source.commit({claim: Position(3)})) == [claim]
        assert (await redis.xpending(f"{topic}:0", "g"))["pending"] == 0


async def test_the_lag_has_the_age_of_the_oldest_entry(server: RedisServer) -> None:
    """By the server's clock; none without a lag."""
    topic = new_topic()
    async with Redis.from_url(server.url) as redis, reading(server.url, topic) as reader:
        (claim,) = reader.host.open
        assert isinstance(reader.source, CountsLag)
        assert (await reader.source.lag({claim: 0}))[claim] == (0, 0.0)
        seconds, _ = await redis.time()
        await add(redis, topic, f"{1000 * (seconds - 60)}-1", f"{1000 * seconds}-1")
        messages, age = (await reader.source.lag({claim: 0}))[claim]
        assert messages == 2
        assert 59 <= age < 120
