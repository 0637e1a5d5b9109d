"""Logs that change under a stored position: lost records are reported with their offsets, and no
others. Those that change while they are read: `tests/kafka/test_changing_topics.py`.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import pytest
from tests.kafka.source.kafka_help import (
    delete_records,
    new_name,
    new_topic,
    produce,
    store,
    stored,
)
from tests.kafka.source.storm_help import QUICK, log_lines, member, run

from sluicegate.consumer import Position, TopicPartition
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

NOON = 1_700_000_000_000
"""Milliseconds since the epoch; the record at offset n was written n seconds later."""


def at(seconds: int) -> datetime:
    """The time of the record at this offset."""
    return datetime.fromtimestamp(NOON / 1000 + seconds, UTC)


async def write(broker: EmbeddedKafka, topic: str, first: int, end: int, size: int = 10) -> None:
    by_time = [(offset, b"%d" % offset) for offset in range(first, end)]
    for offset, key in by_time:
        if offset % 10 == 0 or offset == first:
            batch = [(key, b"x" * size)] * (min(end, offset - offset % 10 + 10) - offset)
            await produce(broker, topic, *batch, timestamp_ms=NOON + offset * 1000)


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 50), ("latest", 100), (at(70), 70)], ids=str
)
def test_a_stored_position_that_retention_has_passed_follows_the_start_point(
    broker: EmbeddedKafka, start: Literal["earliest", "latest"] | datetime, first: int
) -> None:
    """An ERROR contains the offsets that were never delivered."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await write(broker, topic, 0, 100)
        await store(broker, group, {TopicPartition(topic, 0): Position(20)})
        await delete_records(broker, topic, 50)
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, start=start, **QUICK)
        async with log_lines() as log, member(source) as reader:
            told = await log.wait("no longer retained", logging.ERROR)
            assert f"{topic}/0: the next offset, 20, is no longer retained (50 is" in told
            assert f"the offsets up to {first - 1} were never delivered" in told
            await write(broker, topic, 100, 110)
            await reader.stored(110)
            assert sorted(reader.offsets) == list(range(first, 110))
        assert len(log.lines(logging.ERROR)) == 1
        assert (await stored(broker, group))[TopicPartition(topic, 0)].offset == 110

    run(scenario())


def test_a_position_that_retention_has_passed_stands_if_only_stored_ones_may_be_used(
    broker: EmbeddedKafka,
) -> None:
    """With start="committed" it is a trouble; the other partition is read."""

    async def scenario() -> None:
        topic, group = await new_topic(broker, 2), new_name("group")
        one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
        await write(broker, topic, 0, 100)
        await produce(broker, topic, *[(b"k", b"v")] * 10, partition=1)
        await store(broker, group, {one: Position(20), other: Position(0)})
        await delete_records(broker, topic, 50)
        source = KafkaSource(
            topic, bootstrap=broker.bootstrap, group=group, start="committed", **QUICK
        )
        async with log_lines() as log, member(source) as reader:
            await log.wait(re.escape(f"the next offset of {one}, 20, is not retained (50 to 100"))
            await reader.stored(10, partition=1)
            assert not reader.consumer.ready
            assert {partition for partition, _ in reader.handled} == {1}
        assert (await stored(broker, group))[one].offset == 20

    run(scenario())
