"""Records, logs and handlers for tests of the consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._core.source import Record, TopicPartition
from penstock.consumer.consumer import Consumer
from penstock.sources.memory import MemoryLog, MemorySource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.consumer.message import Message
    from penstock.testing import FakeClock

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)


def records(keys: Iterable[object], partition: int = 0, first: int = 0) -> list[Record]:
    """One record per key, with consecutive offsets and their place as the value."""
    return [
        Record("t", partition, first + place, key, b"%d" % place) for place, key in enumerate(keys)
    ]


def log_of(*keys: object) -> MemoryLog:
    """A log with one partition, a record per key."""
    return MemoryLog(records(keys))


def finite(log: MemoryLog, clock: FakeClock, **options: object) -> Consumer:
    """A consumer of a source that ends with the log."""
    source = MemorySource(log, ends=True, clock=clock)
    return Consumer(source, clock=clock, **options)  # type: ignore[arg-type]


class Recorder:
    """A handler that remembers what it has handled."""

    def __init__(self) -> None:
        self.handled: list[Message] = []

    async def __call__(self, message: Message) -> None:
        """Handle a message at once."""
        self.handled.append(message)

    @property
    def offsets(self) -> list[int]:
        """The offsets of the handled messages, in order."""
        return [message.offset for message in self.handled]
