"""The store of parked records in PostgreSQL: the suite, permissions, and a subscription that
parks.

White box: the slot of a stream.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.park_store_suite import ParkStoreConformance
from tests.postgres.streams.log_help import Log, installed, role
from tests.postgres.streams.served_help import consumed, served, stored_offsets

from sluicegate import ConfigError, Consumer, RetryPolicy
from sluicegate.consumer import ConsumerObserver, ParkedRecord, Poison
from sluicegate.postgres import ParkAdmin, PostgresParkStore, install_streams
from sluicegate.postgres.streams.selection import slot_of
from sluicegate.testing.conformance.source.subject import News

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate.batcher import LoopClock
    from sluicegate.consumer import ParkStore, TopicPartition
    from sluicegate.testing import EmbeddedPostgres

RECORD = ParkedRecord(
    topic="t",
    partition=0,
    offset=7,
    key=b"k",
    value=b"v",
    headers=[],
    reason="a test parks it",
    parked_at=datetime(2026, 3, 29, tzinfo=UTC),
)


class Watch(ConsumerObserver):
    """The slots that a consumer has."""

    def __init__(self) -> None:
        self.slots: set[int] = set()
        self.news = News()

    def on_claims(self, name: str, change: Any, partitions: Sequence[TopicPartition]) -> None:
        if change == "assigned":
            self.slots.update([each.partition for each in partitions])
            self.news.fire()

    async def owns(self, slot: int) -> None:
        """Wait until the consumer has this slot."""
        await self.news.wait_for(lambda: slot in self.slots)


class TestPostgresParkStore(ParkStoreConformance):
    """consumer/C:N4."""

    log: Log

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _log(cls, embedded_postgres: EmbeddedPostgres) -> None:
        cls.log = installed(embedded_postgres.dsn)

    def store(self) -> ParkStore:
        return PostgresParkStore(self.log.dsn, schema=self.log.schema)


async def test_texts_that_a_column_cannot_hold_return_exactly(
    log: Log, real_clock: LoopClock
) -> None:
    odd = "a\x00b\ud800\\u0000"
    record = replace(RECORD, topic=odd, value={"n": [odd, 1]}, reason=odd)
    async with PostgresParkStore(log.dsn, schema=log.schema) as store:
        await store.park("c", odd, [record])
        assert await store.keys("c") == {odd}
        assert [*await store.first("c", odd, 9)] == [record]
        with pytest.raises(ValueError, match=r"the value of t/0@7 is a tuple"):
            await store.park("c", "k", [RECORD, replace(RECORD, value=(1, 2))])
        assert await store.keys("c") == {odd}


async def test_two_processes_park_a_record_once(log: Log, real_clock: LoopClock) -> None:
    records = [replace(RECORD, offset=offset) for offset in range(200)]
    async with (
        PostgresParkStore(log.dsn, schema=log.schema) as one,
        PostgresParkStore(log.dsn, schema=log.schema) as two,
    ):
        await asyncio.gather(*[each.park("c", "k", records) for each in (one, two) * 4])
        assert [*await one.first("c", "k", 999)] == records


async def test_the_role_needs_the_right_to_subscribe(log: Log, real_clock: LoopClock) -> None:
    async with role(log) as app, role(log) as other:
        await install_streams(log.dsn, schema=log.schema, subscribe=app.name, append=other.name)
        async with PostgresParkStore(app.dsn, schema=log.schema) as store:
            await store.park("c", "k", [RECORD])
            assert dict(await store.counts("c")) == {"k": 1}
        with pytest.raises(ConfigError, match=f"--schema {log.schema} --subscribe {other.name}"):
            async with PostgresParkStore(other.dsn, schema=log.schema):
                pass
    with pytest.raises(ConfigError, match="sluicegate pg install DSN --schema nowhere"):
        async with PostgresParkStore(log.dsn, schema="nowhere"):
            pass


async def test_a_subscription_parks_a_key_also_when_its_positions_were_not_stored(
    log: Log, real_clock: LoopClock
) -> None:
    """consumer/C:N4: a crash between the store's call and the commit repeats nothing."""
    handled: list[int] = []
    is_repaired, watch = False, Watch()

    async def handle(message: Message) -> None:
        if message.key == "a-1" and message.offset <= 2 and not is_repaired:
            raise ValueError(message.offset)
        handled.append(message.offset)
        watch.news.fire()

    def consumer(*observers: ConsumerObserver, **options: Any) -> Consumer:
        store = PostgresParkStore(log.dsn, schema=log.schema)
        once = RetryPolicy(attempts=1, unlisted_attempts=1)
        source = served(log, **options)
        return Consumer(
            source, name="c", poison=Poison(parked=store), retry=once, observers=observers
        )

    async with log.connected() as con:
        await log.append(con, "a-1", 0, 1)
        await log.append(con, "b-1", 2)
        report = await consumer(ends=True).run(handle)
        assert report.counts.parked == 2
        await con.execute(f"UPDATE {log.sql}.subscription_slot SET position = 0, metadata = ''")
        report = await consumer(ends=True).run(handle)
        assert report.counts.parked == 2
        assert handled == [3, 3]
        name = f"{log.schema}/{slot_of('a-1')} a-1"
        rows = await con.fetch(f"SELECT key #>> '{{}}', record ->> 'offset' FROM {log.sql}.parked")
        assert [(key, int(offset)) for key, offset in rows] == [(name, 1), (name, 2)]
        await log.append(con, "a-1", 3)
        is_repaired = True
        async with consumer(watch) as member, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(member.run(handle))
            await watch.owns(slot_of("a-1"))
            assert (await member.unpark("a-1")).is_done
            await watch.news.wait_for(lambda: 4 in handled)
            member.stop()
            await running
        assert [each for each in handled if each != 3] == [1, 2, 4]
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.parked") == 0
        assert await consumed(log) == []
        assert len(await stored_offsets(log, con)) > 0


async def test_an_operator_unparks_a_key_of_a_running_consumer(
    log: Log, real_clock: LoopClock
) -> None:
    """A request for the record at which the key stands is carried out once; an older one is not."""
    handled: list[int] = []
    news, bad = News(), {1, 2}

    async def handle(message: Message) -> None:
        news.fire()
        if message.offset in bad:
            raise ValueError(message.offset)
        handled.append(message.offset)

    class Failures(ConsumerObserver):
        def on_poison(self, name: str, message: Any, error: Any, action: str) -> None:
            news.fire()

    store, failures = PostgresParkStore(log.dsn, schema=log.schema), Failures()
    name = f"{log.schema}/{slot_of('a-1')} a-1"
    async with log.connected() as con, ParkAdmin(log.dsn, schema=log.schema) as admin:
        await log.append(con, "a-1", 0, 1, 2)
        once = RetryPolicy(attempts=1, unlisted_attempts=1)
        options: dict[str, Any] = {"poison": Poison(parked=store), "retry": once}
        await Consumer(served(log, ends=True), name="c", **options).run(handle)
        assert not await admin.unpark("c", "other")
        bad.remove(1)
        assert await admin.unpark("c", name)
        assert await admin.unpark("c", name)
        assert [each.offset for each in (await admin.list()).items] == [1]
        async with (
            Consumer(served(log), name="c", observers=[failures], **options) as member,
            asyncio.TaskGroup() as tasks,
        ):
            running = tasks.create_task(member.run(handle))
            await news.wait_for(lambda: handled == [1])
            await news.wait_for(lambda: member.stats().counts.naks == 1)
            detail = await admin.show("c", name)
            assert detail is not None
            assert [each.offset for each in detail.records] == [2, 3]
            assert member.parked == ("a-1",)
            bad.clear()
            assert await admin.unpark("c", name)
            await news.wait_for(lambda: handled == [1, 2, 3])
            member.stop()
            await running
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.parked") == 0
        assert not await admin.unpark("c", name)


async def test_a_request_does_not_concern_a_later_record(log: Log, real_clock: LoopClock) -> None:
    """A key that was unparked otherwise, and has been parked again since, stays parked."""
    async with (
        PostgresParkStore(log.dsn, schema=log.schema) as store,
        ParkAdmin(log.dsn, schema=log.schema) as admin,
    ):
        await store.park("c", "k", [RECORD])
        assert await admin.unpark("c", "k")
        assert await store.requests("c") == {"k"}
        assert dict(await store.counts("c")) == {"k": 1}
        await store.remove("c", "k", [RECORD])
        await store.park("c", "k", [replace(RECORD, offset=8)])
        assert not await store.take_request("c", "k")
        assert await store.requests("c") == frozenset()
        assert await admin.unpark("c", "k")
        assert await store.take_request("c", "k")
        assert not await store.take_request("c", "k")
