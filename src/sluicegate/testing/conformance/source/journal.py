"""A journal of the handlers of one test, across all its consumers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from ....consumer import Ack
from .news import News

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ...._core.clock import Clock
    from ...._core.source import SourceRecord
    from ....consumer.lanes.message import Message

Place: TypeAlias = "tuple[int, int]"
"""Partition and offset."""


class Journal:
    """The begun and handled messages of a topic, and every overlap within a key."""

    def __init__(self, clock: Clock, before: Journal | None = None) -> None:
        """`before` is the journal of ended consumers: messages settled there are settled here."""
        self.news = News()
        self.clock = clock
        self.begun: list[Place] = []
        self.handled: list[Place] = []
        """The messages that handlers have acknowledged, in order, with repeats."""
        self.running: set[Place] = set()
        self.violations: list[str] = []
        self._keys: dict[Place, bytes] = {}
        self._settled: set[Place] = set() if before is None else before.settled

    @contextmanager
    def handling(self, *messages: Message) -> Iterator[None]:
        """Note the beginning and the end of a handler, for one message or for a batch."""
        lanes = {(message.partition, message.key) for message in messages}
        overlapping = [other for other in self.running if (other[0], self._keys[other]) in lanes]
        places = [place_of(message) for message in messages]
        if overlapping:
            self.violations.append(f"{places} ran concurrently with {overlapping} of its key")
        self._keys.update(zip(places, [message.key for message in messages], strict=True))
        self.begun += places
        self.running.update(places)
        self.news.fire()
        try:
            yield
        finally:
            self.running.difference_update(places)
            self.news.fire()

    def done(self, *messages: Message) -> None:
        """Note messages as handled, so that they may be committed."""
        for message in messages:
            self.handled.append(place_of(message))
            self.settle(message)
        self.news.fire()

    def handler(
        self, act: Callable[[Message], Awaitable[object]] | None = None
    ) -> Callable[[Message], Awaitable[object]]:
        """Make a handler that calls `act`, or lets other tasks run for a few rounds."""

        async def handle(message: Message) -> object:
            result: object = None
            with self.handling(message):
                if act is not None:
                    result = await act(message)
                else:
                    for _ in range(message.offset % 4):
                        await self.clock.sleep(0)
            if result is None or isinstance(result, Ack):
                self.done(message)
            return result

        return handle

    def settle(self, message: Message) -> None:
        """Allow the commit of a message that no handler has acknowledged."""
        self._settled.add(place_of(message))

    def settle_all(self, *places: Place) -> None:
        """Like `settle`, by partition and offset."""
        self._settled.update(places)

    @property
    def settled(self) -> set[Place]:
        """The messages that may be committed."""
        return set(self._settled)

    def is_settled(self, record: SourceRecord) -> bool:
        """Whether a record may be committed."""
        return (record.partition, record.offset) in self._settled

    async def wait_for(self, count: int) -> None:
        """Suspend until this number of messages has been handled, repeats included."""
        await self.news.wait_for(lambda: len(self.handled) >= count)

    def check_order(self) -> None:
        """Check that the messages of each key were handled once, and in order."""
        last: dict[tuple[int, bytes], int] = {}
        for partition, offset in self.handled:
            lane = partition, self._keys[partition, offset]
            assert last.get(lane, -1) < offset, (
                f"{lane}: {offset} was handled after {last[lane]}: {self.handled}"
            )
            last[lane] = offset


def place_of(message: Message) -> Place:
    """Return the partition and offset of a message."""
    return message.partition, message.offset
