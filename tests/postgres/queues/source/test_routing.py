"""Sticky routing with running consumers: shares, moves, members that join and leave.

Proven here: R4, R5, R6.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from sluicegate import Consumer
from sluicegate.postgres import PostgresAccess, PostgresQueueSource, QueueAdmin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message

pytestmark = pytest.mark.usefixtures("real_clock")

KEYS = 60
LEASE = 30.0


class Handled:
    """The jobs that consumers have handled, in order: consumer, key and number."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, int]] = []
        self.news = asyncio.Condition()

    async def add(self, consumer: str, message: Message) -> None:
        async with self.news:
            self.all.append((consumer, str(message.key), json.loads(message.value)))
            self.news.notify_all()

    async def until(self, count: int) -> None:
        async with self.news:
            await self.news.wait_for(lambda: len(self.all) >= count)

    def owners(self) -> dict[str, set[str]]:
        """The consumers of each key."""
        found: dict[str, set[str]] = {}
        for consumer, key, _ in self.all:
            found.setdefault(key, set()).add(consumer)
        return found

    def check_order(self) -> None:
        last: dict[str, int] = {}
        for _, key, number in self.all:
            assert last.get(key, -1) < number, f"{key}: {number} after {last[key]}"
            last[key] = number


@asynccontextmanager
async def serving(log: Log, name: str, handled: Handled) -> AsyncIterator[Consumer]:
    """A consumer of this name that runs inside the block."""
    source = PostgresQueueSource(
        PostgresAccess(log.dsn, close_timeout=2.0),
        queue="jobs",
        schema=log.schema,
        consumer=name,
        lease=LEASE,
        poll=0.02,
    )
    async with Consumer(source, name=name) as consumer:
        run = asyncio.create_task(consumer.run(lambda message: handled.add(name, message)))
        try:
            yield consumer
        finally:
            consumer.stop()
            await run


async def enqueue(log: Log, number: int) -> None:
    """Insert a job with this number for each key."""
    async with log.connected() as con:
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, key, payload) "
            "SELECT 'jobs', 'k' || k, to_jsonb($1::int) FROM generate_series(1, $2) AS k",
            number,
            KEYS,
        )


async def balance(log: Log) -> list[int]:
    """Move ranges until none has to move; return the number of each consumer's ranges.

    While a consumer moves ranges, others would move none.
    """
    async with log.connected() as con, con.transaction():
        await con.execute(f"SELECT FROM {log.sql}.queue_group WHERE queue = 'jobs' FOR UPDATE")
        while await con.fetchval(f"SELECT {log.sql}.balance_ranges('jobs', 'default', 0)"):
            pass
        rows = await con.fetch(f"SELECT count(*) FROM {log.sql}.ring_range GROUP BY consumer")
    return [row[0] for row in rows]


async def test_consumers_share_the_keys_and_take_over_from_those_that_leave(log: Log) -> None:
    """R6: a key has one consumer while the members stay; the moves keep the order."""
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("jobs", sticky=True)
    handled = Handled()
    async with serving(log, "a", handled):
        await enqueue(log, 0)
        await handled.until(KEYS)
        async with serving(log, "b", handled):
            assert await balance(log) == [128, 128]
            del handled.all[:]
            for number in (1, 2, 3):
                await enqueue(log, number)
                await handled.until(KEYS * number)
            owners = handled.owners()
            assert all(len(each) == 1 for each in owners.values())
            assert {"a", "b"} == set.union(*owners.values())
        assert await balance(log) == [256]
        await enqueue(log, 4)
        await handled.until(4 * KEYS)
    assert {consumer for consumer, _, number in handled.all if number == 4} == {"a"}
    handled.check_order()


async def test_an_operator_moves_a_range_between_running_consumers(log: Log) -> None:
    """R5: manual ranges beside members; the keys of the range follow."""
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("jobs", sticky=True)
        routing = await admin.routing("jobs", "default")
        handled = Handled()
        await routing.move(0, 65_535, "a")
        async with serving(log, "a", handled), serving(log, "b", handled):
            await enqueue(log, 0)
            await handled.until(KEYS)
            assert {consumer for consumer, _, _ in handled.all} == {"a"}
            await routing.move(0, 65_535, "b")
            await enqueue(log, 1)
            await handled.until(2 * KEYS)
    assert {consumer for consumer, _, number in handled.all if number == 1} == {"b"}
    handled.check_order()
