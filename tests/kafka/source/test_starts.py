"""The start of a partition: its stored position, otherwise the start point."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import pytest
from tests.kafka.source.kafka_help import new_name, new_topic, produce, store, stored
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import QUICK, log_lines, member, run
from tests.kafka.source.test_retention import at, write

from sluicegate.consumer import Position, TopicPartition
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from datetime import datetime

    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

STARTS: list[tuple[Literal["earliest", "latest"] | datetime, int]] = [
    ("earliest", 0),
    ("latest", 30),
    (at(-5), 0),
    (at(20), 20),
    (at(500), 30),
]


@pytest.mark.parametrize(("start", "first"), STARTS, ids=str)
def test_a_partition_without_a_stored_position_begins_at_the_start_point(
    broker: EmbeddedKafka, start: Literal["earliest", "latest"] | datetime, first: int
) -> None:
    """A time begins at the first record of that time or later, or at the end."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await write(broker, topic, 0, 30)
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, start=start, **QUICK)
        async with member(source) as reader:
            await reader.owns(1)
            await write(broker, topic, 30, 40)
            await reader.stored(40)
            assert sorted(reader.offsets) == list(range(first, 40))

    run(scenario())


@pytest.mark.parametrize("start", ["earliest", "latest", "committed", at(20)], ids=str)
def test_a_stored_position_comes_before_every_start_point(
    broker: EmbeddedKafka, start: Literal["earliest", "latest"] | datetime
) -> None:
    """O-T5."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await write(broker, topic, 0, 30)
        await store(broker, group, {TopicPartition(topic, 0): Position(7)})
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, start=start, **QUICK)
        async with member(source) as reader:
            await reader.stored(30)
            assert sorted(reader.offsets) == list(range(7, 30))

    run(scenario())


def test_without_a_stored_position_nothing_is_read_if_only_stored_ones_may_be_used(
    broker: EmbeddedKafka,
) -> None:
    """It is a trouble, and the partition with a stored position is read."""

    async def scenario() -> None:
        topic, group = await new_topic(broker, 2), new_name("group")
        for partition in (0, 1):
            await produce(broker, topic, *[(b"k", b"v")] * 10, partition=partition)
        await store(broker, group, {TopicPartition(topic, 1): Position(4)})
        source = KafkaSource(
            topic, bootstrap=broker.bootstrap, group=group, start="committed", **QUICK
        )
        async with log_lines() as log, member(source) as reader:
            await log.wait(f"no position is stored for {topic}/0, and start='committed'")
            await reader.stored(10, partition=1)
            assert reader.handled == [(1, offset) for offset in range(4, 10)]
            assert not reader.consumer.ready
        assert (await stored(broker, group)).keys() == {TopicPartition(topic, 1)}

    run(scenario())


def test_a_record_that_came_after_a_start_at_the_end_is_not_lost_with_its_first_reader(
    broker: EmbeddedKafka,
) -> None:
    """The end moves until the next start, so it is stored before the claim begins.
    consumer/C:C1.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await write(broker, topic, 0, 30)
        forever = asyncio.Event()

        async def stuck(message: Message) -> None:
            reached.set()
            await forever.wait()

        reached = asyncio.Event()
        async with proxied(broker) as proxy:
            source = KafkaSource(
                topic, bootstrap=proxy.bootstrap, group=group, start="latest", **QUICK
            )
            async with member(source, stuck, drain=0.0) as first, log_lines() as log:
                await first.owns(1)
                await write(broker, topic, 30, 40)
                await reached.wait()
                lost = proxy.hold(Api.COMMIT, "request")  # a crash commits nothing more
            lost.cut()
            again = KafkaSource(
                topic, bootstrap=broker.bootstrap, group=group, start="latest", **QUICK
            )
            async with member(again) as second:
                await second.stored(40)
                assert sorted(second.offsets) == list(range(30, 40))
            assert not log.lines(40)

    run(scenario())
