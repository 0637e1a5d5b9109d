"""Topics for transactional flows from Kafka into Kafka, and the records that read-committed readers
see.

White box: the requests to a group's coordinator, for stable offsets.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as ClientPartition
from aiokafka.client import CoordinationType
from aiokafka.errors import for_code
from kafka_transaction_child import row_of
from tests.kafka.access_help import kafka_args
from tests.kafka.source.kafka_help import admin_of, end_of, new_name, new_topic, produce
from tests.kafka.source.storm_help import Watch

from sluicegate import flow
from sluicegate.consumer import Commits, Position, TopicPartition
from sluicegate.kafka import KafkaSink, KafkaSource
from sluicegate.kafka.client.coordinator import Coordinator, StableOffsetFetch, offsets_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from sluicegate.consumer import DrainReport
    from sluicegate.testing import EmbeddedKafka

SOON: Any = {"session_timeout": 6.0, "rebalance_timeout": 10.0}
"""Membership settings of a test's source."""
LAST = b'{"part": 0, "at": 60, "key": "last"}'
"""A record after a transaction."""


class Made(NamedTuple):
    """A record of the sink's topic, described by its source record."""

    part: int
    at: int
    key: str | None


async def readable(
    broker: EmbeddedKafka, topic: str, isolation: str = "read_committed"
) -> list[Made]:
    """All records of a topic that readers of this isolation level see, partition by partition, once
    no transaction is open: the end markers of transactions are written after the commit returns.
    """
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    found: list[Made] = []
    async with consumer:
        numbers = sorted(consumer.partitions_for_topic(topic) or await _numbers(consumer, topic))
        keys = [ClientPartition(topic, number) for number in numbers]
        consumer.assign(keys)
        ends = {key: await end_of(broker, topic, key.partition) for key in keys}
        await consumer.seek_to_beginning(*keys)
        for key in keys:
            while await consumer.position(key) < ends[key]:
                taken = await consumer.getmany(key, timeout_ms=200)
                found += [Made(**json.loads(each.value)) for each in taken.get(key, ())]
    return found


async def _numbers(consumer: Any, topic: str) -> set[int]:
    consumer.subscribe([topic])
    numbers: set[int] = await consumer._client._wait_on_metadata(topic)
    consumer.unsubscribe()
    return numbers


def _code_of(response: Any) -> int:
    return next((each.code for each in offsets_in(response) if each.code), 0)


class KeptTopic(NamedTuple):
    """A source topic, a sink topic and a group."""

    broker: EmbeddedKafka
    source_topic: str
    topic: str
    group: str

    def source(self, bootstrap: str | None = None, **options: Any) -> KafkaSource:
        """A new source for the topic."""
        return KafkaSource(
            self.source_topic,
            group=self.group,
            **kafka_args(KafkaSource, bootstrap or self.broker.bootstrap, **{**SOON, **options}),
        )

    def sink(self, bootstrap: str | None = None, **options: Any) -> KafkaSink:
        """A new sink for the topic."""
        options = {"key": "key", "request_timeout": 2.0, "close_timeout": 1.0, **options}
        to = bootstrap or self.broker.bootstrap
        return KafkaSink(self.topic, **kafka_args(KafkaSink, to, **options))

    async def readable(self, isolation: str = "read_committed") -> list[Made]:
        """The records of the sink's topic once no transaction is open."""
        return await readable(self.broker, self.topic, isolation)

    async def stored(self) -> dict[int, Position]:
        """The group's positions by partition, including those of transactions that are about to
        end.
        """
        async with admin_of(self.broker) as admin:
            (topic,) = await admin.describe_topics([self.source_topic])
            numbers = [each["partition"] for each in topic["partitions"]]
            request = StableOffsetFetch(self.group, [(self.source_topic, numbers)])
            group = Coordinator(admin._client, CoordinationType.GROUP, self.group)
            answer = await group.ask(request, _code_of, within=10.0)
        assert answer.code == 0, for_code(answer.code)
        return {
            each.partition: Position(each.offset, each.metadata)
            for each in offsets_in(answer.body)
            if each.offset >= 0
        }

    def at(self, number: int) -> TopicPartition:
        """A partition of the source's topic."""
        return TopicPartition(self.source_topic, number)


async def ended(broker: EmbeddedKafka, topic: str) -> None:
    """Wait until the broker has ended the topic's transaction and everything behind it is
    readable.
    """
    await produce(broker, topic, (b"k", LAST))
    consumer: Any = AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    async with consumer:
        while (await consumer.getone()).value != LAST:
            pass


async def kept_topic(broker: EmbeddedKafka, partitions: int = 1, outputs: int = 2) -> KeptTopic:
    """New topics, and a new group."""
    return KeptTopic(
        broker,
        await new_topic(broker, partitions),
        await new_topic(broker, outputs),
        new_name("kept"),
    )


def assert_once_and_in_order(made: list[Made], counts: dict[int, int]) -> None:
    """Check that each source record produced one record, and that records of a key are in order."""
    due = Counter((part, at) for part, count in counts.items() for at in range(count))
    found = Counter((each.part, each.at) for each in made)
    assert {"missing": [*due - found], "repeated": [*found - due]} == {
        "missing": [],
        "repeated": [],
    }
    by_key: defaultdict[tuple[int, str | None], list[int]] = defaultdict(list)
    for each in made:
        by_key[each.part, each.key].append(each.at)
    for key, offsets in by_key.items():
        assert offsets == sorted(offsets), key


class KeptFlow:
    """A transactional flow that runs in a task."""

    def __init__(self, source: KafkaSource, sink: Any, **options: Any) -> None:
        times: dict[str, Any] = {"commits": Commits(every=0.05, after=50), "drain": 2.5}
        options = {**times, "name": "kept", **options}
        transform = options.pop("transform", row_of)
        self.watch = Watch()
        self.pipe = flow.transaction(source, sink, transform, observers=[self.watch], **options)
        self.task = asyncio.ensure_future(self.pipe.run())

    async def stored(self, counts: dict[int, int]) -> None:
        """Wait until these positions are committed."""
        for partition, count in counts.items():
            await self._or_end(self.watch.stored(count, partition))

    async def _or_end(self, event: Awaitable[object]) -> None:
        waiting = asyncio.ensure_future(event)
        await asyncio.wait([waiting, self.task], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await self.task
            raise AssertionError("the flow has ended")

    async def stop(self) -> DrainReport:
        """Drain and close the flow."""
        self.pipe.stop()
        return await self.task


@asynccontextmanager
async def running(
    source: KafkaSource, sink: Any, *, seconds: float = 60, **options: Any
) -> AsyncIterator[KeptFlow]:
    """A running flow; it is drained and closed at exit unless it has already been stopped."""
    flow = KeptFlow(source, sink, **options)
    try:
        async with asyncio.timeout(seconds):
            yield flow
    except BaseException:
        flow.task.cancel()
        await asyncio.wait([flow.task])
        raise
    if not flow.task.done():
        await flow.stop()
    await flow.task
