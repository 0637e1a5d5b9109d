"""Topics of state that are refused: each time with what to do, and before any event is handled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from state_topics import settled_state
from tests.sources.kafka.kafka_help import (
    admin_of,
    delete_topic,
    fill,
    new_name,
    new_topic,
    produce,
    store,
    stored,
)

from penstock import ConfigError
from penstock._core.clock import LOOP_CLOCK
from penstock._core.source import Position, TopicPartition
from penstock.consumer import Consumer
from penstock.flow import KafkaState
from penstock.sources.kafka import KafkaSource
from penstock.sources.memory import MemoryLog, MemorySource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from penstock.consumer.jobs import EventContext
    from penstock.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


class Counted:
    """A topic with records, its group, and the names of a state."""

    def __init__(self, broker: EmbeddedKafka, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.part = TopicPartition(topic, 0)
        self.group, self.name = new_name("state"), new_name("changes")
        self.handled: list[int] = []

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncGenerator[Consumer]:
        """A consumer that counts, until the block ends."""
        given: dict[str, Any] = {"topic": self.name, "group": self.group, **options}
        group = given.pop("group")
        source = KafkaSource(self.topic, bootstrap=self.broker.bootstrap, group=group)
        async with (
            KafkaState(bootstrap=self.broker.bootstrap, **given) as state,
            Consumer(state.attach(source), ordering="partition", commit_every=0.01) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            run = tasks.create_task(consumer.run_events(self.handle, state=state))
            yield consumer
            consumer.stop()
            await run

    async def handle(self, context: EventContext) -> None:
        """Count."""
        self.handled.append(context.message.offset)
        context.store.put("n", context.store.get("n", 0) + 1)

    async def count(self, offset: int) -> None:
        """Run until the group has this offset, with the state of it."""
        async with self.running():
            async with asyncio.timeout(30.0):
                while (await stored(self.broker, self.group)).get(self.part) is None or (
                    await stored(self.broker, self.group)
                )[self.part].offset < offset:
                    pass
        found = await settled_state(self.broker, self.name, self.group, self.part)
        assert (found.position, found.state) == (offset, {"n": offset})

    async def refused(self, **options: Any) -> str:
        """Why it does not begin; no event is handled."""
        before = len(self.handled)
        async with self.running(**options) as consumer, asyncio.timeout(30.0):
            while "last try failed" not in (told := str(consumer.explain())):
                await LOOP_CLOCK.sleep(0.01)
            assert not consumer.ready
        assert len(self.handled) == before
        return told


async def counted(broker: EmbeddedKafka, count: int = 5) -> Counted:
    """A topic with so many records that are counted."""
    made = Counted(broker, await new_topic(broker))
    await fill(broker, made.topic, count)
    if count:
        await made.count(count)
    return made


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
async def test_a_topic_that_deletes(broker: EmbeddedKafka, policy: str) -> None:
    """It would lose entries without a word."""
    name = await new_topic(broker, settings={"cleanup.policy": policy})
    with pytest.raises(ConfigError, match=f"cleanup.policy={policy}.*kafka-configs.sh --alter"):
        async with KafkaState(topic=name, bootstrap=broker.bootstrap):
            pass


async def test_a_topic_is_created_compacted(broker: EmbeddedKafka) -> None:
    """With as many partitions as the topic that is consumed, and the settings that were asked for."""
    made = Counted(broker, await new_topic(broker, 3))
    await fill(broker, made.topic, 1)
    async with made.running(topic_config={"segment.ms": "600000"}), asyncio.timeout(30.0):
        while not made.handled:
            await LOOP_CLOCK.sleep(0.01)
    async with admin_of(broker) as admin:
        (told,) = await admin.describe_topics([made.name])
        assert len(told["partitions"]) == 3


async def test_offsets_that_were_reset(broker: EmbeddedKafka) -> None:
    """The state would hold events that run again. Once they are set back, the next run goes on."""
    made = await counted(broker)
    await store(broker, made.group, {made.part: Position(2)})
    told = await made.refused()
    assert "at 5, but the group" in told
    assert "has the position 2" in told
    assert f"Set the group's offset of {made.topic}/0 to 5" in told
    await store(broker, made.group, {made.part: Position(5)})
    await produce(broker, made.topic, (b"k", b"v"))
    await made.count(6)


async def test_a_topic_that_was_made_anew(broker: EmbeddedKafka) -> None:
    """It does not hold the state before the position."""
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
    """Where it stands: there is no other state of its position."""
    made = await counted(broker, 0)
    await fill(broker, made.topic, 5)
    await store(broker, made.group, {made.part: Position(3)})
    async with made.running(), asyncio.timeout(30.0):
        while len(made.handled) < 2:
            await LOOP_CLOCK.sleep(0.01)
    assert made.handled == [3, 4]
    found = await settled_state(broker, made.name, made.group, made.part)
    assert (found.position, found.state) == (5, {"n": 2})


async def test_too_few_partitions(broker: EmbeddedKafka) -> None:
    """They are added by hand; the consumer goes on then."""
    made = Counted(broker, await new_topic(broker, 2))
    await fill(broker, made.topic, 1)
    await fill(broker, made.topic, 1, partition=1)
    await new_topic(broker, 1, name=made.name, settings={"cleanup.policy": "compact"})
    async with made.running() as consumer, asyncio.timeout(30.0):
        while "has 1 partitions" not in (told := str(consumer.explain())):
            await LOOP_CLOCK.sleep(0.01)
        assert f"kafka-topics.sh --alter --topic {made.name} --partitions 2" in told
        assert made.handled == []


async def test_another_source(broker: EmbeddedKafka) -> None:
    async with KafkaState(topic=new_name("s"), bootstrap=broker.bootstrap) as state:
        with pytest.raises(ConfigError, match="must be a KafkaSource, on the same cluster"):
            state.attach(MemorySource(MemoryLog([])))


async def test_a_value_that_the_topic_does_not_take(broker: EmbeddedKafka) -> None:
    """It fails its event, and no commit: its neighbours are stored."""
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
    async with made.running(), asyncio.timeout(30.0):
        while len(errors) < 3:
            await LOOP_CLOCK.sleep(0.01)
    found = await settled_state(broker, made.name, made.group, made.part)
    assert found.state == {"n": 2, "large": "x" * 19_000}
    assert "has 25,002 bytes; the limit is" in errors[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": "a b"},
        {"topic": ""},
        {"max_pending": 0},
        {"replication_factor": 0},
        {"topic_config": {"cleanup.policy": "delete"}},
        {"topic_config": {"segment.ms": 1}},
        {"topic_config": "segment.ms=1"},
        {"compression": "brotli"},
        {"bootstrap": "nowhere"},
        {"group": "g"},
    ],
)
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    given: dict[str, Any] = {"topic": "t", "bootstrap": "localhost:9092", **arguments}
    with pytest.raises(ConfigError):
        KafkaState(**given)
