"""Ways to consume a stream until all of its messages are acknowledged, each by a new consumer.

A handler does nothing, except that it fails the first attempt of one message in twenty. Joining is
not timed: a turn runs from the first message to the server's response after the last
acknowledgement.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from sluicegate import Consumer, Nak
from sluicegate.consumer import Commits, InFlight
from sluicegate.nats import JetStreamSource

from ..stopwatch import Stopwatch
from .streams import STREAM, check_settled, connected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluicegate import Message

    from ..stopwatch import Took

    Way = Callable[[str, str, "Work"], Awaitable[Took]]
    """A function of the server, the name of the new consumer, and the work."""

FETCH = 500
CONCURRENCY = 100
WINDOW = 1_000
"""Maximum number of messages inside."""
ACK_WAIT = 3.0
"""Seconds, so that held messages are extended each second of a turn."""
FAILS_EVERY = 20
PATIENCE = 120.0
"""Maximum seconds of a turn."""
_numbers = itertools.count()


class Work:
    """The messages of a turn: the failing attempts, and the number of handled messages."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.handled = 0
        self.naks = 0
        self._failed: set[bytes] = set()
        self._watch: Stopwatch | None = None

    def fails(self, value: bytes) -> bool:
        """Handle a message; return whether this attempt fails."""
        if self._watch is None:
            self._watch = Stopwatch()
        number = value[: value.index(b" ")]
        if int(number) % FAILS_EVERY == 0 and number not in self._failed:
            self._failed.add(number)
            self.naks += 1
            return True
        self.handled += 1
        return False

    @property
    def is_finished(self) -> bool:
        """Whether all messages are handled."""
        return self.handled >= self.messages

    def read(self) -> Took:
        """Return the time so far. Raises `AssertionError` if messages are missing."""
        assert self._watch is not None
        took = self._watch.read()
        expected = len(range(0, self.messages, FAILS_EVERY))
        assert (self.handled, self.naks) == (self.messages, expected), (self.handled, self.naks)
        return took


async def ours(url: str, durable: str, work: Work) -> Took:
    """Use Sluicegate's consumer: in order per subject, retries in the lane, held messages
    extended.
    """
    finished = asyncio.Event()

    async def handle(message: Message) -> Nak | None:
        if work.fails(message.value):
            return Nak(delay=0.0)
        if work.is_finished:
            finished.set()
        return None

    source = JetStreamSource(
        STREAM, servers=url, durable=durable, ack_wait=ACK_WAIT, prefetch=WINDOW
    )
    async with Consumer(
        source,
        concurrency=CONCURRENCY,
        in_flight=InFlight(WINDOW, fetch_max=FETCH),
        commits=Commits(every=0.25),
    ) as consumer:
        run = asyncio.create_task(consumer.run(handle))
        await finished.wait()
        await consumer.commit()
        took = work.read()
        consumer.stop()
        await run
    return took


async def fetch_loop(url: str, durable: str, work: Work) -> Took:
    """Use nats-py's own loop: one message after another; the server redelivers failed ones."""

    async def handle(value: bytes) -> bool:
        return work.fails(value)

    async with connected(url) as client:
        subscription = await client.jetstream().pull_subscribe("", durable=durable, stream=STREAM)
        while not work.is_finished:
            for message in await subscription.fetch(FETCH):
                if await handle(message.data):
                    await message.nak()
                elif work.is_finished:
                    await message.ack_sync(timeout=PATIENCE)  # the server has counted them all
                else:
                    await message.ack()
        return work.read()


def turn(way: Way, url: str, messages: int) -> Took:
    """Run a turn of a way, checked by the server's counts."""
    durable = f"turn-{next(_numbers)}"

    async def timed() -> Took:
        async with asyncio.timeout(PATIENCE):
            took = await way(url, durable, Work(messages))
        await check_settled(url, durable, messages)
        return took

    return asyncio.run(timed())
