"""Topics that change while they are read, by each client and group protocol.

White box: the sources look at their brokers more often.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from time import time_ns
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from tests.kafka.client_help import each_kind, source_by
from tests.kafka.sink.sink_help import items, read
from tests.kafka.source.kafka_help import (
    admin_of,
    delete_records,
    delete_topic,
    end_of,
    fill,
    new_name,
    new_topic,
    produce,
    producer_of,
    transact,
)
from tests.kafka.source.storm_help import log_lines, member, run

from sluicegate import Batcher, Limits, Retry, stack
from sluicegate.consumer import TopicPartition
from sluicegate.kafka import KafkaAccess, KafkaSink
from sluicegate.kafka.confluent import sessions as confluent_sessions
from sluicegate.kafka.source import sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for missing and recreated topics more often than every five seconds."""
    for each in (sessions, confluent_sessions):
        monkeypatch.setattr(each, "REFRESH_EVERY", 0.2)


def sending(broker: EmbeddedKafka, topic: str) -> Batcher[Any]:
    """A batcher of numbers with keys, as an open sink."""
    sink = KafkaSink(
        topic,
        bootstrap=KafkaAccess(broker.bootstrap, request_timeout=2.0),
        key=lambda n: f"k{n % 10}",
    )
    return Batcher(
        stack(sink, Retry(attempts=100)),
        key=lambda n: f"k{n % 10}",
        limits=Limits(max_items=20, max_delay=0.01),
    )


@each_kind("aiokafka")
def test_partitions_that_are_added_are_read_from_their_first_records(
    broker: EmbeddedKafka, kind: str
) -> None:
    """Also with `start="latest"`. Nothing is lost, and the records of a key are in order in each of
    its partitions: a sink that was open before uses the partitions it knows for up to five minutes.
    """
    seen: defaultdict[tuple[bytes | None, int], list[int]] = defaultdict(list)

    async def handle(message: Message) -> None:
        seen[message.key, message.partition].append(int(message.value or b""))

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        source = source_by(kind, broker, topic, group, start="latest")
        async with member(source, handle) as reader, sending(broker, topic) as before:
            await reader.owns(1)
            for number in range(100):
                await before.add(number)
            async with admin_of(broker) as admin:
                await admin.create_partitions({topic: NewPartitions(total_count=3)})
            async with producer_of(broker) as producer:
                await producer.client.force_metadata_update()
            for number in range(100, 200):
                await before.add(number)
            await before.flush()
            async with sending(broker, topic) as after:
                for number in range(200, 400):
                    await after.add(number)
            await reader.handled_count(400)
            await reader.owns(3)

    run(scenario())
    assert sorted(each for numbers in seen.values() for each in numbers) == [*range(400)]
    assert {partition for _, partition in seen} == {0, 1, 2}
    assert all(numbers == sorted(numbers) for numbers in seen.values())


@each_kind("cooperative")
@pytest.mark.parametrize("count", [150, pytest.param(30, marks=pytest.mark.long)])
def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_start(
    broker: EmbeddedKafka, kind: str, count: int
) -> None:
    """As a new log: the old positions do not apply, and no record of the new one is skipped. With
    the broker's protocol, some may come twice.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await fill(broker, topic, 100)
        source = source_by(kind, broker, topic, group)
        async with log_lines() as log, member(source) as reader:
            await reader.stored(100)
            async with admin_of(broker) as admin:
                await admin.delete_topics([topic])
            await new_topic(broker, name=topic)
            await fill(broker, topic, count)
            await reader.news.until(lambda: {*reader.offsets[100:]} == {*range(count)})
            assert f"{topic}/0" in await log.wait("begins (again )?at 0", logging.ERROR)

    run(scenario())


@pytest.mark.long
async def test_a_sink_writes_to_a_topic_that_was_deleted_and_created_again(
    broker: EmbeddedKafka, real_clock: object
) -> None:
    """Its sequence numbers are those of the old one; each item arrives once."""
    topic = await new_topic(broker)
    async with sending(broker, topic) as batcher, asyncio.timeout(100):
        for number in range(50):
            await batcher.deliver(number)
        await delete_topic(broker, topic)
        receipts = [await batcher.submit(number) for number in range(50, 100)]
        await new_topic(broker, name=topic)
        for each in receipts:
            await each
    found = await items(broker, topic)
    assert sorted(found, key=lambda n: n % 10) == sorted(range(50, 100), key=lambda n: n % 10)


@each_kind("aiokafka")
def test_retention_that_passes_a_paused_partition_is_told_when_it_goes_on(
    broker: EmbeddedKafka, kind: str
) -> None:
    """Each record is either delivered or named in the ERROR."""
    few = (
        {"max_partition_fetch_bytes": 2_000}
        if kind == "aiokafka"
        else {"fetch.message.max.bytes": 2_000, "queued.min.messages": 1}
    )  # most later records are not fetched yet

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        large = [(b"k", b"x" * 500)]
        await produce(broker, topic, *large * 10)
        source = source_by(kind, broker, topic, group, client=few)
        async with log_lines() as log, member(source) as reader:
            await reader.stored(10)
            reader.consumer.pause(TopicPartition(topic, 0))
            for _ in range(19):
                await produce(broker, topic, *large * 10)
            await delete_records(broker, topic, 180)
            reader.consumer.resume(TopicPartition(topic, 0))
            await reader.stored(200)
            told = await log.wait("no longer retained", logging.ERROR)
            gap = re.search(r"the next offset, (\d+), .* up to (\d+) were", told)
            assert gap is not None
            lost = list(range(int(gap[1]), int(gap[2]) + 1))
            assert lost
            assert sorted(reader.offsets + lost) == list(range(200))
        assert reader.watch.count("assigned") == 1

    run(scenario())


@asynccontextmanager
async def compacting(broker: EmbeddedKafka) -> AsyncIterator[None]:
    """Let the broker compact topics every 0.1 s instead of every 15 s."""

    async def set_backoff(value: str | None) -> None:
        wait = ConfigResource(ConfigResourceType.BROKER, "1", {"log.cleaner.backoff.ms": value})
        async with admin_of(broker) as admin:
            await admin.alter_configs([wait])

    await set_backoff("100")
    try:
        yield
    finally:
        await set_backoff("15000")


@pytest.mark.long
@each_kind("aiokafka")
def test_compaction_that_passes_a_paused_partition_leaves_the_last_record_of_each_key(
    broker: EmbeddedKafka, kind: str
) -> None:
    """Replaced records are holes, which the position passes; a tombstone is a message without a
    value. The log is read to its end.
    """
    values: dict[bytes | None, bytes | None] = {}

    async def handle(message: Message) -> None:
        values[message.key] = message.value

    async def scenario() -> None:
        topic = await new_topic(
            broker,
            settings={
                "cleanup.policy": "compact",
                "segment.ms": "1000",
                "min.cleanable.dirty.ratio": "0.01",
            },
        )
        group, partition = new_name("group"), TopicPartition(topic, 0)
        now = time_ns() // 1_000_000
        source = source_by(kind, broker, topic, group)
        async with compacting(broker), member(source, handle) as reader:
            await produce(broker, topic, (b"k0", b"first"), timestamp_ms=now)
            await reader.stored(1)
            reader.consumer.pause(partition)
            for number in range(1, 61):  # each in a segment of its own
                value = None if number == 60 else b"%d" % number
                at = now + number * 2000
                await produce(broker, topic, (b"k%d" % (number % 3), value), timestamp_ms=at)
            while len(left := await read(broker, topic)) > 10:
                pass  # each reads the whole topic
            reader.consumer.resume(partition)
            await reader.stored(61)
            assert (await reader.consumer.lag())[partition].messages == 0
            assert len(left) <= len(reader.offsets)
        assert reader.offsets == sorted(reader.offsets)

    run(scenario())
    assert values == {b"k0": None, b"k1": b"58", b"k2": b"59"}


@each_kind("consumer")
def test_markers_of_transactions_at_the_end_of_a_partition_leave_no_lag(
    broker: EmbeddedKafka, kind: str
) -> None:
    """Nor do records behind an open transaction, which cannot be read yet; they are read when it
    ends, without its own ones if it is aborted.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        partition = TopicPartition(topic, 0)
        await fill(broker, topic, 5)
        await transact(broker, topic, (b"k", b"aborted"), commit=False)
        await transact(broker, topic, (b"k", b"committed"))
        await transact(broker, topic, (b"k", b"aborted"), commit=False)
        end = await end_of(broker, topic)
        async with member(source_by(kind, broker, topic, group)) as reader:
            await reader.stored(end)
            assert (await reader.consumer.lag())[partition].messages == 0
            async with producer_of(broker, transactional_id=new_name("transaction")) as producer:
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"open", partition=0)
                await fill(broker, topic, 3)
                assert (await reader.consumer.lag())[partition].messages == 0
                await producer.abort_transaction()
            await reader.stored(end + 5)
            assert (await reader.consumer.lag())[partition].messages == 0
        assert reader.offsets == [0, 1, 2, 3, 4, 7, end + 1, end + 2, end + 3]

    run(scenario())


@pytest.mark.parametrize(
    ("first", "second"),
    [*pairwise(("aiokafka", "cooperative", "aiokafka"))],
)
def test_eager_and_cooperative_members_of_a_group_exclude_each_other(
    broker: EmbeddedKafka, first: str, second: str
) -> None:
    """The second one says why it gets nothing, and takes over when the first one has left."""

    async def scenario() -> None:
        topic, group = await new_topic(broker, 2), new_name("group")
        async with log_lines() as log, AsyncExitStack() as members:
            one = await members.enter_async_context(member(source_by(first, broker, topic, group)))
            await one.owns(2)
            other = await members.enter_async_context(
                member(source_by(second, broker, topic, group))
            )
            await log.wait("has members with another protocol or assignor", logging.WARNING)
            await fill(broker, topic, 10)
            await one.stored(10)
            await one.stop()
            await other.owns(2)
            await fill(broker, topic, 10)
            await other.handled_count(10)
        assert len({*one.handled, *other.handled}) == 20

    run(scenario())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(first, second, marks=() if first == "cooperative" else pytest.mark.long)
        for kind in ("cooperative", "aiokafka")
        for first, second in pairwise((kind, "consumer", kind))
    ],
)
def test_members_of_the_protocols_consumer_and_another_share_a_group(
    broker: EmbeddedKafka, first: str, second: str
) -> None:
    """So the protocol can be changed in a rolling deployment, in both directions. Each record is
    handled once.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker, 4), new_name("group")

        async def write() -> None:
            for partition in range(4):
                await fill(broker, topic, 20, partition=partition)

        async with AsyncExitStack() as members:
            one = await members.enter_async_context(member(source_by(first, broker, topic, group)))
            await one.owns(4)
            await write()
            other = await members.enter_async_context(
                member(source_by(second, broker, topic, group))
            )
            await other.owns(2)
            await one.owns(2)
            await write()
            await other.handled_count(40)
            await one.handled_count(120)
            await one.stop()
            await other.owns(4)
            await write()
            await other.handled_count(120)
        handled = [*one.handled, *other.handled]
        assert len(handled) == len({*handled}) == 240

    run(scenario())
