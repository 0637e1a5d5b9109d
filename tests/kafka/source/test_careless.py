"""Changes by others to a group's stored positions and topics: nothing is lost silently.

White box: the map beside a committed position is encoded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.kafka.source.kafka_help import (
    admin_of,
    fill,
    new_name,
    new_topic,
    produce,
    store,
    stored,
)

from sluicegate import Consumer
from sluicegate.consumer import Position, TopicPartition
from sluicegate.consumer.progress import offset_map
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")

COUNT = 20


def consumer_of(broker: EmbeddedKafka, topic: str, group: str) -> Consumer:
    source = KafkaSource(
        topic,
        bootstrap=broker.bootstrap,
        group=group,
        session_timeout=30.0,
        rebalance_timeout=10.0,
    )
    return Consumer(source, ordering="partition", drain=2.0)


async def run_until(broker: EmbeddedKafka, topic: str, group: str, last: bytes) -> list[int]:
    """The offsets that a consumer handles, up to the record with this value."""
    offsets: list[int] = []
    consumer = consumer_of(broker, topic, group)

    async def handle(message: Message) -> None:
        offsets.append(message.offset)
        if message.value == last:
            consumer.stop()

    async with consumer:
        await consumer.run(handle)
    return offsets


def map_of(position: int) -> str:
    """A map of a record other than those that a test examines."""
    return offset_map.encode(position, [(position + 2, position + 4)]).text


@pytest.mark.parametrize(
    ("position", "runs_from"),
    [
        pytest.param(Position(3), 3, id="backwards"),
        pytest.param(Position(15), 15, id="forwards"),
        pytest.param(Position(1_000), 0, id="beyond the end"),
        pytest.param(Position(5, "by hand, on Monday"), 5, id="with words"),
        pytest.param(Position(5, map_of(4)), 5, id="with the map of another position"),
    ],
)
async def test_after_a_reset_everything_behind_the_new_position_runs(
    broker: EmbeddedKafka,
    position: Position,
    runs_from: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """consumer/C:N1: unknown metadata is reported and ignored; a position behind the end is
    reported and replaced by the start point.
    """
    topic, group = await new_topic(broker), new_name("reset")
    await fill(broker, topic, COUNT)
    await store(broker, group, {TopicPartition(topic, 0): position})
    ran = await run_until(broker, topic, group, b"%d" % (COUNT - 1))
    assert ran == list(range(runs_from, COUNT))
    is_odd = bool(position.metadata) or position.offset > COUNT
    assert is_odd == any(
        record.levelname in {"WARNING", "ERROR"} and topic in record.getMessage()
        for record in caplog.records
        if record.name.startswith("sluicegate")
    )
    assert (await stored(broker, group))[TopicPartition(topic, 0)] == Position(COUNT)


async def test_a_topic_made_anew_begins_at_the_start_point(
    broker: EmbeddedKafka,
) -> None:
    """The broker forgets the positions together with the topic."""
    topic, group = await new_topic(broker), new_name("deleted")
    await fill(broker, topic, COUNT)
    last = b"%d" % (COUNT - 1)
    assert await run_until(broker, topic, group, last) == list(range(COUNT))
    async with admin_of(broker) as admin:
        await admin.delete_topics([topic])
    await new_topic(broker, name=topic)
    await produce(broker, topic, (None, b"first"), (None, b"new"))
    assert await run_until(broker, topic, group, b"new") == [0, 1]


@pytest.mark.long
async def test_a_topic_made_anew_under_a_running_consumer_is_told_and_read_from_its_start(
    broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit for the old topic is refused, and the missing position is reported."""
    topic, group = await new_topic(broker), new_name("anew")
    await fill(broker, topic, COUNT)
    old, new = asyncio.Event(), asyncio.Event()
    values: list[object] = []
    consumer = consumer_of(broker, topic, group)

    async def handle(message: Message) -> None:
        values.append(message.value)
        if message.value == b"%d" % (COUNT - 1):
            old.set()
        elif message.value == b"new":
            new.set()

    async with consumer, asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run(handle))
        await old.wait()
        await consumer.commit()
        async with admin_of(broker) as admin:
            await admin.delete_topics([topic])
        await new_topic(broker, name=topic)
        await produce(broker, topic, (None, b"first"), (None, b"new"))
        await new.wait()
        consumer.stop()
    assert values[COUNT:] == [b"first", b"new"]
    assert (await stored(broker, group))[TopicPartition(topic, 0)] == Position(2)
    assert any(
        record.levelname == "ERROR" and topic in record.getMessage() for record in caplog.records
    )
