"""Records, logs and handlers for tests of the consumer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sluicegate import Consumer, Terminate
from sluicegate.consumer import MemoryLog, MemorySource, Record, TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from sluicegate import Message
    from sluicegate.testing import FakeClock

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)


def records(keys: Iterable[object], partition: int = 0, first: int = 0) -> list[Record]:
    """One record per key, with consecutive offsets and the index as the value."""
    return [
        Record("t", partition, first + place, key, b"%d" % place) for place, key in enumerate(keys)
    ]


def log_of(*keys: object) -> MemoryLog:
    """A log with one partition and one record per key."""
    return MemoryLog(records(keys))


def finite(log: MemoryLog, clock: FakeClock, **options: object) -> Consumer:
    """A consumer whose source ends with the log."""
    source = MemorySource(log, ends=True, clock=clock)
    return Consumer(source, clock=clock, **options)  # type: ignore[arg-type]


class Recorder:
    """A handler that records the handled messages."""

    def __init__(self) -> None:
        self.handled: list[Message] = []

    async def __call__(self, message: Message) -> object:
        """Handle a message immediately."""
        self.handled.append(message)
        return None

    @property
    def offsets(self) -> list[int]:
        """The offsets of the handled messages, in order."""
        return [message.offset for message in self.handled]


class Poisoned(Recorder):
    """Fails messages of these offsets while they are in the set."""

    def __init__(self, *offsets: int) -> None:
        super().__init__()
        self.bad = set(offsets)

    async def __call__(self, message: Message) -> Terminate | None:
        await super().__call__(message)
        return Terminate(f"bad {message.offset}") if message.offset in self.bad else None


@asynccontextmanager
async def running(
    log: MemoryLog, clock: FakeClock, handler: Callable[[Message], Any], **options: Any
) -> AsyncGenerator[Consumer]:
    """A consumer that runs until the block ends and is idle when the block begins."""
    consumer = Consumer(MemorySource(log, clock=clock), clock=clock, **options)
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await clock.advance(2.0)
        try:
            yield consumer
        finally:
            consumer.stop()
            await run
