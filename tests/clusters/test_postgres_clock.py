"""Wall clocks that jump by hours: the database's, and the program's."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.clusters.moved_clock import MovedClock, server_with_clock
from tests.clusters.postgres_parts import LEASE, Parts
from tests.clusters.test_postgres import SETTINGS, assert_kept, finished
from tests.kafka.source.storm_help import News

from sluicegate import Consumer
from sluicegate.postgres import (
    PostgresQueueSource,
    PostgresStreamSource,
    QueueAdmin,
    install_streams,
)
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from sluicegate import Message
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

HOURS = 3.0
DEAD = """
INSERT INTO sluicegate.job (queue, key, payload)
SELECT 'jobs', 'k' || n % 5, to_jsonb(n) FROM generate_series(1, 20) AS n;
INSERT INTO sluicegate.job (queue, payload) VALUES ('jobs', '21'), ('jobs', '22');
SELECT sluicegate.seen_consumer('jobs', 'g', 'dead', 2);
CREATE TABLE leased AS
SELECT * FROM sluicegate.claim_jobs('jobs', 'g', 'dead', 2, 1, 1, 2);
SELECT sluicegate.seen_consumer('jobs', 'g', 'slow', 2);
CREATE TABLE freed AS
SELECT * FROM sluicegate.claim_jobs('jobs', 'g', 'slow', 2, 1, 0, 2);
SELECT sluicegate.settle_jobs('jobs', array_agg(r_lease), array_agg(r_lane), array_agg('free'::text),
  array_agg(r_place), NULL, NULL, NULL, NULL, '{}', '{}') FROM freed;
UPDATE sluicegate.subscription_slot
SET epoch = epoch + 1, owner = 'dead', lease_until = clock_timestamp() + interval '2 s';
INSERT INTO sluicegate.subscription_member VALUES ('all', 'dead', clock_timestamp());
"""
"""Leases of a process that has died, and keys that were given back and wait for their turn."""


@pytest.fixture
def moved() -> Iterator[tuple[EmbeddedPostgres, MovedClock]]:
    with there_or_skip("postgres", server_with_clock(SETTINGS)) as found:
        yield found


async def test_leases_and_ready_keys_follow_a_clock_that_was_set_back(
    moved: tuple[EmbeddedPostgres, MovedClock],
) -> None:
    """They would wait for three hours. Each job and each message is handled once."""
    server, clock = moved
    await install_streams(server.dsn)
    async with QueueAdmin(server.dsn) as admin:
        await admin.create("jobs")
    news = News()
    jobs: list[int] = []
    messages: list[int] = []

    async def work(message: Message) -> None:
        jobs.append(json.loads(message.value))
        news.tell()

    async def read(message: Message) -> None:
        messages.append(json.loads(message.value)["n"])
        news.tell()

    async def append() -> None:
        for number in range(10):
            stream = f"order-{number}"
            data = json.dumps([{"type": "placed", "data": {"n": number}}])
            await con.execute("SELECT sluicegate.append($1, $2::text::jsonb)", stream, data)

    @asynccontextmanager
    async def running(source: Any, handle: Any) -> AsyncIterator[None]:
        async with Consumer(source, drain=5.0) as consumer:
            task = asyncio.create_task(consumer.run(handle))
            yield
            consumer.stop()
            await task

    log = PostgresStreamSource(server.dsn, subscription="all", lease=LEASE)
    queue = PostgresQueueSource(server.dsn, queue="jobs", lease=LEASE)
    con = await asyncpg.connect(server.dsn)
    async with asyncio.timeout(60):
        await append()
        async with running(log, read):
            await news.until(lambda: len(messages) == 10)
        await con.execute(DEAD)
        clock.move(-HOURS)
        await append()
        async with running(log, read), running(queue, work):
            await news.until(lambda: len(messages) == 20 and len(jobs) == 22)
    await con.close()
    assert sorted(jobs) == [*range(1, 23)]
    assert jobs.index(1) < jobs.index(6) < jobs.index(11) < jobs.index(16)


@pytest.mark.long
@pytest.mark.parametrize("hours", [HOURS, -HOURS])
async def test_the_clock_of_the_database_jumps(
    moved: tuple[EmbeddedPostgres, MovedClock], tmp_path: Path, hours: float
) -> None:
    """Forwards, all leases end: jobs and messages in progress may come twice."""
    server, clock = moved
    parts = Parts(server.dsn, tmp_path)

    async def step() -> None:
        clock.move(hours)

    async with asyncio.timeout(200):
        await parts.run(step)
    results = await finished(parts)
    assert_kept(results)
    assert len({*parts.ticks}) == len(parts.ticks)
    if hours < 0:
        assert not [part for part, each in results.items() if each.twice]


async def child(clock: MovedClock, *arguments: str) -> dict[str, Any]:
    """Run the program with this clock."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.clusters.clock_child", *arguments),
        env={**os.environ, **clock.environment},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.fixture
def clock() -> Iterator[MovedClock]:
    found = MovedClock()
    yield found
    found.folder.remove()


@pytest.mark.parametrize("hours", [HOURS, -HOURS])
async def test_no_wait_of_a_program_follows_its_wall_clock(clock: MovedClock, hours: float) -> None:
    """`Timeout`, the backoff of `Retry`, `max_delay` and `RateLimit` use the monotonic clock."""
    async with asyncio.timeout(60):
        found = await child(clock, str(hours))
    assert abs(found["moved"]) < 60  # it was moved back at the end
    assert 0.5 <= found["waits"]["timeout"] < 30
    assert 0.7 <= found["waits"]["rate"] < 30
