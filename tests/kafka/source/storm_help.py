"""Consumers of a real broker whose handlers, claims, commits and log lines are events for tests."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sluicegate import Consumer
from sluicegate.consumer import Commits, ConsumerObserver, TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from sluicegate import Message

T = TypeVar("T")

QUICK: dict[str, Any] = {"session_timeout": 30.0, "rebalance_timeout": 8.0}
"""Timeouts of a source that a busy machine keeps."""


def run(coroutine: Coroutine[Any, Any, T], seconds: float = 120.0) -> T:
    """Run a scenario within a time limit, for one that hangs."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await coroutine

    return asyncio.run(bounded())


class News:
    """Wakes waiters for a condition whenever something has happened."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Wake the waiters."""
        for each in self._waiters:
            if not each.done():
                each.set_result(None)
        self._waiters.clear()

    async def until(self, is_so: Callable[[], T]) -> T:
        """Wait until this holds; return its value."""
        while not (found := is_so()):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            await waiter
        return found


class LogLines(logging.Handler):
    """Sluicegate's log lines as they arrive."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self._news = News()

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line."""
        self.records.append(record)
        self._news.tell()

    def lines(self, level: int = logging.DEBUG) -> list[str]:
        """The lines of this level or above."""
        return [each.getMessage() for each in self.records if each.levelno >= level]

    async def wait(self, pattern: str, level: int = logging.INFO) -> str:
        """Wait for a line that matches anywhere; earlier lines count."""

        def found() -> str | None:
            return next((each for each in self.lines(level) if re.search(pattern, each)), None)

        line = await self._news.until(found)
        assert line is not None
        return line


@asynccontextmanager
async def log_lines() -> AsyncIterator[LogLines]:
    """The lines of the loggers `sluicegate` from here on."""
    handler, logger = LogLines(), logging.getLogger("sluicegate")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class Watch(ConsumerObserver):
    """The claims and commits of a consumer; tests can wait for each."""

    def __init__(self) -> None:
        self.news = News()
        self.claims: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.commits: list[tuple[dict[TopicPartition, int], BaseException | None]] = []
        self.owned: set[TopicPartition] = set()

    def on_claims(self, name: str, change: Any, partitions: Sequence[TopicPartition]) -> None:
        self.claims.append((change, tuple(partitions)))
        (self.owned.update if change == "assigned" else self.owned.difference_update)(partitions)
        self.news.tell()

    def on_committed(
        self, name: str, offsets: Mapping[TopicPartition, int], error: BaseException | None
    ) -> None:
        self.commits.append((dict(offsets), error))
        self.news.tell()

    def count(self, change: str) -> int:
        """The number of changes of this kind."""
        return sum([each == change for each, _ in self.claims])

    def told(self, change: str) -> Awaitable[object]:
        """Wait for one more change of this kind, counted from this call."""
        before = self.count(change)
        return self.news.until(lambda: self.count(change) > before)

    async def owns(self, count: int) -> None:
        """Wait until it owns this many partitions."""
        await self.news.until(lambda: len(self.owned) == count)

    async def stored(self, offset: int, partition: int = 0) -> None:
        """Wait until a commit of this offset was stored."""

        def is_stored() -> bool:
            return any(
                error is None and at.partition == partition and committed >= offset
                for offsets, error in self.commits
                for at, committed in offsets.items()
            )

        await self.news.until(is_stored)


class Member:
    """A consumer that runs in a task, and the offsets that its handler has finished."""

    def __init__(
        self,
        source: Any,
        handler: Callable[[Message], Awaitable[object]] | None = None,
        **options: Any,
    ) -> None:
        self.watch = Watch()
        self.news = self.watch.news
        self.handled: list[tuple[int, int]] = []
        """Partition and offset of every finished message."""
        self._handler = handler
        options = {"drain": 2.0, "commits": Commits(every=0.1), "name": "storm", **options}
        self.consumer = Consumer(source, observers=[self.watch], **options)
        self.is_open = False
        self._task: asyncio.Task[object] | None = None

    async def handle(self, message: Message) -> None:
        """The handler."""
        if self._handler is not None:
            await self._handler(message)
        self.handled.append((message.partition, message.offset))
        self.news.tell()

    @property
    def offsets(self) -> list[int]:
        """The offsets of the finished messages."""
        return [offset for _, offset in self.handled]

    def start(self) -> None:
        """Open the consumer and run it in the background."""
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with self.consumer:
            self.is_open = True
            self.news.tell()
            await self.consumer.run(self.handle)

    async def handled_count(self, count: int) -> None:
        """Wait until this many messages have been handled."""
        await self.news.until(lambda: len(self.handled) >= count)

    async def failed_commit_or_handled(self, count: int) -> None:
        """Wait until one more commit has failed, or this many messages have been handled."""
        before = len(self.watch.commits)

        def is_so() -> bool:
            failed = any(error is not None for _, error in self.watch.commits[before:])
            return failed or len(self.handled) >= count

        await self.news.until(is_so)

    async def owns(self, count: int) -> None:
        """Wait until it owns this many partitions."""
        await self.watch.owns(count)

    async def stored(self, offset: int, partition: int = 0) -> None:
        """Wait until a commit of this offset was stored."""
        await self.watch.stored(offset, partition)

    async def stop(self) -> None:
        """Drain and close the consumer."""
        assert self._task is not None
        self.consumer.stop()
        await self._task


@asynccontextmanager
async def member(
    source: Any,
    handler: Callable[[Message], Awaitable[object]] | None = None,
    **options: Any,
) -> AsyncIterator[Member]:
    """A running consumer; it is drained and closed at exit unless it has already been stopped."""
    running = Member(source, handler, **options)
    running.start()
    task = running._task
    assert task is not None
    try:
        await running.news.until(lambda: running.is_open)
        yield running
    except BaseException:
        task.cancel()
        await asyncio.wait([task])
        raise
    if not task.done():
        await running.stop()
    await task
