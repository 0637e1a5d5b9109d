"""A consumer of a stream in the test's process; tests can wait for its troubles and messages."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.postgres.queues.source.outages_help import Telling

from sluicegate import Consumer
from sluicegate.consumer import Commits
from sluicegate.nats import JetStreamSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from tests.nats.jetstream.streams_help import Stream

    from sluicegate import Message
    from sluicegate.consumer import ClaimHost, Result
    from sluicegate.testing import EmbeddedNats


class Watched(JetStreamSource):
    """A source that reports its troubles to the test."""

    def __init__(self, stream: str, **options: Any) -> None:
        super().__init__(stream, **options)
        self.news = asyncio.Event()
        self.trouble: str | None = None

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        async with super().open(Telling(host, self._told)):
            yield

    def _told(self, trouble: str | None) -> None:
        self.trouble = trouble
        self.news.set()


class Running:
    """A running consumer, and its messages."""

    def __init__(self, source: Watched) -> None:
        self.source = source
        self.began: list[tuple[int, int]] = []
        """Sequence numbers and attempts."""
        self.ended: list[int] = []
        self.answers: Mapping[bytes, Callable[[Message], Result | None]] = {}
        """The results of the handler by payload; other messages are acknowledged."""
        self.gate = asyncio.Event()
        """Releases messages whose payload is `hold`."""
        self.consumer: Consumer
        self.run: asyncio.Task[object]

    async def handle(self, message: Message) -> Result | None:
        self.began.append((message.offset, message.attempt))
        self.source.news.set()
        if message.value == b"hold":
            await self.gate.wait()
        if message.value.startswith(b"sleep "):
            await asyncio.sleep(float(message.value[6:]))
        answer = self.answers.get(message.value[:10])
        result = None if answer is None else answer(message)
        if result is None:
            self.ended.append(message.offset)
            self.source.news.set()
        return result

    async def until(self, is_met: Callable[[], bool]) -> None:
        """Wait until this holds; it is checked at each trouble and each message."""
        while not is_met():
            self.source.news.clear()
            if self.run.done():
                await self.run
                raise AssertionError("the run has ended")
            await self.source.news.wait()

    async def handled(self, *sequences: int) -> None:
        """Wait until these messages are handled."""
        await self.until(lambda: {*sequences} <= {*self.ended})

    async def trouble(self, part: str) -> str:
        """Wait for a trouble with this text; return what `explain()` says."""
        await self.until(lambda: part in (self.source.trouble or ""))
        told = str(self.consumer.explain())
        assert part in told
        return told

    async def recovered(self) -> None:
        """Wait for the end of all troubles."""
        await self.until(lambda: self.source.trouble is None)


@asynccontextmanager
async def running(
    server: EmbeddedNats, stream: str, *, options: Mapping[str, Any] | None = None, **source: Any
) -> AsyncIterator[Running]:
    """A consumer of a stream with these options for itself and its source."""
    given: dict[str, Any] = {"durable": "d", "servers": server.url, "ack_wait": 1.0, **source}
    others: dict[str, Any] = {
        "name": "here",
        "commits": Commits(every=0.02),
        "drain": 2.0,
        **(options or {}),
    }
    made = Running(Watched(stream, **given))
    made.consumer = Consumer(made.source, **others)
    async with asyncio.timeout(120), made.consumer as consumer:
        made.run = asyncio.create_task(consumer.run(made.handle))
        try:
            yield made
        finally:
            consumer.stop()
            await asyncio.wait([made.run])


@asynccontextmanager
async def advisories(stream: Stream, kind: str) -> AsyncIterator[asyncio.Queue[bytes]]:
    """The server's advisories of this kind for the consumers of a stream."""
    told: asyncio.Queue[bytes] = asyncio.Queue()

    async def heard(message: Any) -> None:
        told.put_nowait(message.data)

    subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{stream.name}.>"
    subscription = await stream.client.subscribe(subject, cb=heard)
    await stream.client.flush()
    yield told
    await subscription.unsubscribe()
