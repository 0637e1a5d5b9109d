"""State topics that are refused before any event is handled; each error says what to do.

White box: the key of a mark.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import NewPartitions
from tests.kafka.source.kafka_help import (
    admin_of,
    delete_topic,
    fill,
    new_name,
    new_topic,
    produce,
    store,
    stored,
)
from tests.kafka.state.state_counted import Counted, counted
from tests.kafka.state.state_topics import settled_state

from sluicegate import ConfigError
from sluicegate.batcher import LoopClock
from sluicegate.consumer import MemoryLog, MemorySource, Position, TopicPartition
from sluicegate.kafka import KafkaState
from sluicegate.kafka.state.topic import mark_key

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
async def test_a_topic_that_deletes(broker: EmbeddedKafka, policy: str) -> None:
    """It would lose entries silently."""
    name = await new_topic(broker, settings={"cleanup.policy": policy})
    with pytest.raises(ConfigError, match=f"cleanup.policy={policy}.*kafka-configs.sh --alter"):
        async with KafkaState(topic=name, bootstrap=broker.bootstrap):
            pass


async def test_a_topic_is_created_compacted(broker: EmbeddedKafka) -> None:
    """It has as many partitions as the consumed topic."""
    made = Counted(broker, await new_topic(broker, 3))
    await fill(broker, made.topic, 1)
    async with made.running(), asyncio.timeout(100):
        while not made.handled:
            await LoopClock().sleep(0.01)
    async with admin_of(broker) as admin:
        (told,) = await admin.describe_topics([made.name])
        assert len(told["partitions"]) == 3


async def test_offsets_that_were_reset(broker: EmbeddedKafka) -> None:
    """The state would contain events that run again. Once the offsets are restored, the next run
    continues.
    """
    made = await counted(broker)
    await store(broker, made.group, {made.part: Position(2)})
    told = await made.refused()
    assert "at 5, but the group" in told
    assert "has the position 2" in told
    assert f"Set the group's offset of {made.topic}/0 to 5" in told
    await store(broker, made.group, {made.part: Position(5)})
    await produce(broker, made.topic, (b"k", b"v"))
    await made.count(6)


async def test_a_state_of_a_newer_format(broker: EmbeddedKafka) -> None:
    """Not read as if it were of this one; the records stay, and the release that wrote them continues."""
    made = await counted(broker)
    newer = json.dumps({"format": 2}).encode()
    await produce(broker, made.name, (mark_key(made.group, made.topic), newer))
    assert "has format 2, and this release of Sluicegate knows format 1" in await made.refused()


async def test_a_topic_that_was_made_anew(broker: EmbeddedKafka) -> None:
    """It does not contain the state before the position."""
    made = await counted(broker)
    await delete_topic(broker, made.name)
    await new_topic(broker, name=made.name, settings={"cleanup.policy": "compact"})
    assert "was stored with one: this is another topic, or it was recreated" in await made.refused()


async def test_a_state_of_another_group(broker: EmbeddedKafka) -> None:
    made = await counted(broker)
    told = await made.refused(group=new_name("other"))
    assert f"has the state of the topic '{made.topic}' for the group '{made.group}'" in told


async def test_a_topic_that_others_use(broker: EmbeddedKafka) -> None:
    made = await counted(broker, 0)
    await new_topic(broker, name=made.name, settings={"cleanup.policy": "compact"})
    await produce(broker, made.name, (b"k", b"v"))
    assert "has records that were not written by a state" in await made.refused()


async def test_a_group_that_has_run_without_state_begins_with_an_empty_one(
    broker: EmbeddedKafka,
) -> None:
    """Its position has no other state, so it continues there with an empty one."""
    made = await counted(broker, 0)
    await fill(broker, made.topic, 5)
    await store(broker, made.group, {made.part: Position(3)})
    async with made.running(), asyncio.timeout(100):
        while len(made.handled) < 2:
            await LoopClock().sleep(0.01)
    assert made.handled == [3, 4]
    found = await settled_state(broker, made.name, made.group, made.part)
    assert (found.position, found.state) == (5, {"n": 2})


async def test_too_few_partitions(broker: EmbeddedKafka) -> None:
    """Only the partitions without a counterpart are refused. Once an operator adds them, the
    consumer continues.
    """
    made = Counted(broker, await new_topic(broker, 2))
    await fill(broker, made.topic, 2)
    await fill(broker, made.topic, 3, partition=1)
    await new_topic(broker, 1, name=made.name, settings={"cleanup.policy": "compact"})
    async with made.running() as consumer, asyncio.timeout(100):
        while "has 1 partitions" not in (told := str(consumer.explain())):
            await LoopClock().sleep(0.01)
        assert f"kafka-topics.sh --alter --topic {made.name} --partitions 2" in told
        while (await stored(broker, made.group)).get(made.part) is None:
            pass
        assert not consumer.ready
        assert made.handled == [0, 1]
        async with admin_of(broker) as admin:
            await admin.create_partitions({made.name: NewPartitions(total_count=2)})
        second = TopicPartition(made.topic, 1)
        while (await stored(broker, made.group)).get(second) is None:
            pass
    found = await settled_state(broker, made.name, made.group, second)
    assert (found.position, found.state) == (3, {"n": 3})


async def test_another_source(broker: EmbeddedKafka) -> None:
    async with KafkaState(topic=new_name("s"), bootstrap=broker.bootstrap) as state:
        with pytest.raises(ConfigError, match="must be a KafkaSource, on the same cluster"):
            state.attach(MemorySource(MemoryLog([])))


async def test_a_value_that_the_topic_does_not_take(broker: EmbeddedKafka) -> None:
    """The value fails its event but no commit: the state of its neighbours is stored."""
    made = Counted(broker, await new_topic(broker))
    settings = {"cleanup.policy": "compact", "max.message.bytes": "20000"}
    await new_topic(broker, name=made.name, settings=settings)
    await fill(broker, made.topic, 3)
    errors: list[str] = []

    async def handle(context: EventContext) -> None:
        context.store.put("n", context.message.offset)
        for size in (19_000, 25_000):
            try:
                context.store.put("large", "x" * size)
            except ConfigError as error:
                errors.append(str(error))

    made.handle = handle  # type: ignore[method-assign]
    async with made.running(), asyncio.timeout(100):
        while len(errors) < 3:
            await LoopClock().sleep(0.01)
    found = await settled_state(broker, made.name, made.group, made.part)
    assert found.state == {"n": 2, "large": "x" * 19_000}
    assert "has 25,002 bytes; the limit is" in errors[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": "a b"},
        {"topic": ""},
        {"max_pending": 0},
        {"bootstrap": "nowhere"},
        {"group": "g"},
    ],
)
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    given: dict[str, Any] = {"topic": "t", "bootstrap": "localhost:9092", **arguments}
    with pytest.raises(ConfigError):
        KafkaState(**given)
