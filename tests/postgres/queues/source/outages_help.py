"""A consumer of a queue in the test's process; tests can wait for its troubles and jobs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.postgres.access_help import access_from

from sluicegate import Consumer
from sluicegate.consumer import Commits
from sluicegate.postgres import PostgresAccess, PostgresQueueSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message
    from sluicegate.consumer import ClaimHost, Position, Result, SourceClaim, TopicPartition


class Telling:
    """A host that passes reports to a test."""

    def __init__(self, host: ClaimHost, told: Callable[[str | None], None]) -> None:
        self._host = host
        self._told = told

    @property
    def room_bytes(self) -> int:
        return self._host.room_bytes

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        return self._host.assigned(starts)

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        return await self._host.revoked(claims, within)

    def ended(self, claims: Collection[SourceClaim]) -> None:
        self._host.ended(claims)

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        self._host.cancelled(claim, offsets)

    def reported(self, trouble: str | None) -> None:
        self._host.reported(trouble)
        self._told(trouble)


class Watched(PostgresQueueSource):
    """A source that reports its troubles to the test."""

    def __init__(self, dsn: str | PostgresAccess, **options: Any) -> None:
        super().__init__(dsn, **options)
        self.changed = asyncio.Condition()
        self.trouble: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        async with super().open(Telling(host, self._told)):
            yield

    def _told(self, trouble: str | None) -> None:
        self.trouble = trouble
        self.tell()

    def tell(self) -> None:
        """Wake waiters so that they check again."""
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


class Running:
    """A running consumer, and the jobs whose handlers have begun and ended."""

    def __init__(self, source: Watched) -> None:
        self.source = source
        self.began: list[tuple[int, int]] = []
        """Places and attempts."""
        self.ended: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: Result | Exception | None = None
        """The results or errors of the handler."""
        self.consumer: Consumer
        self.run: asyncio.Task[object]

    async def handle(self, message: Message) -> Result | None:
        self.began.append((message.offset, message.attempt))
        self.source.tell()
        await self.gate.wait()
        self.ended.append(message.offset)
        self.source.tell()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def until(self, is_met: Callable[[], bool]) -> None:
        """Wait until this holds; it is checked at each trouble and each job."""
        async with self.source.changed:
            await self.source.changed.wait_for(is_met)

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
    log: Log, dsn: str | PostgresAccess = "", *, most: int = 1000, **options: Any
) -> AsyncIterator[Running]:
    """A consumer of the queue `q`, with at most this many jobs inside."""
    given: dict[str, Any] = {"queue": "q", "schema": log.schema, "poll": 0.02, **options}
    made = Running(Watched(access_from(dsn or log.dsn, given), **given))
    made.consumer = Consumer(
        made.source, name="here", commits=Commits(every=0.02), drain=4.0, in_flight=most
    )
    async with made.consumer as consumer:
        made.run = asyncio.create_task(consumer.run(made.handle))
        try:
            yield made
        finally:
            consumer.stop()
            await made.run
