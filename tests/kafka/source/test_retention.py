"""Logs that change under a position: lost records are reported with their offsets, and no
others.

White box: the source looks at its brokers more often.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import pytest
from tests.kafka.source.kafka_help import (
    admin_of,
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
from sluicegate.kafka.source import sessions

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

NOON = 1_700_000_000_000
"""Milliseconds since the epoch; the record at offset n was written n seconds later."""


def at(seconds: int) -> datetime:
    """The time of the record at this offset."""
    return datetime.fromtimestamp(NOON / 1000 + seconds, UTC)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for missing topics more often than every five seconds."""
    monkeypatch.setattr(sessions, "REFRESH_EVERY", 0.2)


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


def test_retention_that_passes_a_paused_partition_is_told_when_it_goes_on(
    broker: EmbeddedKafka,
) -> None:
    """Each record is either delivered or named in the ERROR."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await write(broker, topic, 0, 10, size=500)
        source = KafkaSource(
            topic,
            bootstrap=broker.bootstrap,
            group=group,
            **QUICK,
            client={"max_partition_fetch_bytes": 2_000},  # most later records are not fetched yet
        )
        async with log_lines() as log, member(source) as reader:
            await reader.stored(10)
            reader.consumer.pause(TopicPartition(topic, 0))
            await write(broker, topic, 10, 200, size=500)
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


@pytest.mark.parametrize("count", [30, 150])
def test_a_topic_that_is_deleted_and_made_again_is_read_from_its_start(
    broker: EmbeddedKafka, count: int
) -> None:
    """As a new log: the old positions do not apply, and no record of the new one is skipped."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await write(broker, topic, 0, 100)
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, **QUICK)
        async with log_lines() as log, member(source) as reader:
            await reader.stored(100)
            async with admin_of(broker) as admin:
                await admin.delete_topics([topic])
            await new_topic(broker, name=topic)
            await write(broker, topic, 0, count)
            await reader.handled_count(100 + count)
            assert sorted(reader.offsets[100:]) == list(range(count))
            assert reader.watch.count("assigned") == 2
            (told,) = log.lines(logging.ERROR)
            assert f"{topic}/0" in told
            assert "100" in told

    run(scenario(), 20)
