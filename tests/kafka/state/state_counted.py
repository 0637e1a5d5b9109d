"""A consumer with state in Kafka that counts its events, and the reasons for its refusals."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored
from tests.kafka.state.state_topics import settled_state

from sluicegate import Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, TopicPartition
from sluicegate.kafka import KafkaSource, KafkaState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedKafka


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
        """A counting consumer that runs until the block ends."""
        given: dict[str, Any] = {
            "topic": self.name, "group": self.group, "bootstrap": self.broker.bootstrap, **options
        }  # fmt: skip
        names = ("group", "commit_timeout", "start")
        of_source = {each: given.pop(each) for each in names if each in given}
        source = KafkaSource(self.topic, bootstrap=self.broker.bootstrap, **of_source)
        async with (
            KafkaState(**given) as state,
            Consumer(
                state.attach(source), ordering="partition", commits=Commits(every=0.01)
            ) as consumer,
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
        """Run until the group has this offset and the matching state."""
        async with self.running():
            async with asyncio.timeout(100):
                while (await stored(self.broker, self.group)).get(self.part) is None or (
                    await stored(self.broker, self.group)
                )[self.part].offset < offset:
                    pass
        found = await settled_state(self.broker, self.name, self.group, self.part)
        assert (found.position, found.state) == (offset, {"n": offset})

    async def refused(self, **options: Any) -> str:
        """The reason for which it does not begin; no event is handled."""
        before = len(self.handled)
        async with self.running(**options) as consumer, asyncio.timeout(100):
            while "last try failed" not in (told := str(consumer.explain())):
                await LoopClock().sleep(0.01)
            assert not consumer.ready
        assert len(self.handled) == before
        return told


async def counted(broker: EmbeddedKafka, count: int = 5) -> Counted:
    """A topic with this many records to be counted."""
    made = Counted(broker, await new_topic(broker))
    await fill(broker, made.topic, count)
    if count:
        await made.count(count)
    return made
