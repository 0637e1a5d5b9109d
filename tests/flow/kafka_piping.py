"""Pipes from a real broker, and a destination that records what each group member applied.

White box: the type of a pipe's report is private.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from tests.kafka.access_help import kafka_args
from tests.kafka.source.storm_help import QUICK, Watch
from tests.kafka.source.truth_help import Truth

from sluicegate import (
    Batcher,
    Capabilities,
    Limits,
    UnavailableError,
    UnknownOutcomeError,
    flow,
)
from sluicegate.consumer import Commits
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sluicegate import Batch
    from sluicegate.flow.pipe import PipeReport


Trouble = Literal["refused", "cut off", "answer lost"] | None
"""The way in which a write fails."""


def key_of(row: Any) -> tuple[int, bytes | None]:
    """The ordering key: records of one key in one partition."""
    return row.partition, row.key


class Applied(Truth):
    """The rows that the members of a group applied, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[int, int]] = []
        """Partition and offset of each application."""
        self.by_key: defaultdict[object, list[int]] = defaultdict(list)
        """The offsets applied for each key, including repeats."""
        self.late_starts: list[tuple[str, int, int]] = []
        """Member, partition and offset of rows whose write began when the partition was already
        lost.
        """
        self.doubtful: set[tuple[int, int]] = set()
        """The records applied by writes whose outcome is unknown."""

    def applied(self, batch: Batch[Any]) -> None:
        """Record an applied write."""
        for row in batch:
            at = (row.partition, row.offset)
            self.order.append(at)
            self.finished[at] += 1
            self.by_key[key_of(row)].append(row.offset)
        self.news.tell()

    @property
    def repeated(self) -> set[tuple[int, int]]:
        """The records that were applied more than once."""
        return {at for at, times in Counter(self.order).items() if times > 1}

    def assert_in_order(self) -> None:
        """Check that the first applications of each key are in offset order."""
        for key, offsets in self.by_key.items():
            first = list(dict.fromkeys(offsets))
            assert first == sorted(first), key


class TruthSink:
    """The destination of one member."""

    capabilities = Capabilities(key_prefix_safe=True)

    def __init__(
        self,
        truth: Applied,
        name: str,
        before: Callable[[Batch[Any]], Awaitable[object]],
        trouble: Callable[[], Trouble] = lambda: None,
    ) -> None:
        self._truth = truth
        self._name = name
        self._before = before
        self._trouble = trouble
        self.watch = PipeWatch()

    async def write(self, batch: Batch[Any]) -> None:
        """Apply a batch, after the delay or event that the test has set."""
        owned = {partition.partition for partition in self.watch.owned}
        self._truth.late_starts += [
            (self._name, row.partition, row.offset) for row in batch if row.partition not in owned
        ]
        await self._before(batch)
        trouble = self._trouble()
        if trouble == "refused":
            raise UnavailableError("not now")
        if trouble == "cut off":
            raise UnknownOutcomeError("cut off")
        self._truth.applied(batch)
        if trouble == "answer lost":
            self._truth.doubtful.update((row.partition, row.offset) for row in batch)
            raise UnknownOutcomeError("the answer was lost")


class PipeWatch(Watch):
    """The events of a pipe, including its poison messages."""

    def __init__(self) -> None:
        super().__init__()
        self.poison = 0

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        self.poison += 1
        self.news.tell()


class PipeMember:
    """A pipe that runs in a task as a group member."""

    def __init__(
        self, source: Any, batcher: Any, watch: PipeWatch | None = None, **options: Any
    ) -> None:
        self.watch = PipeWatch() if watch is None else watch
        options = {"drain": 2.5, "commits": Commits(every=0.1), "name": "piped", **options}
        self.pipe = flow.pipe(source, batcher, observers=[self.watch], **options)
        self.task: asyncio.Task[PipeReport] = asyncio.ensure_future(self.pipe.run())

    async def poisoned(self, count: int) -> None:
        """Wait until the pipe has reported and handled this many poison messages."""
        await self.watch.news.until(lambda: self.watch.poison >= count)
        await asyncio.sleep(0)

    async def stop(self) -> PipeReport:
        """Drain and close the pipe."""
        self.pipe.stop()
        return await self.task


@asynccontextmanager
async def pipe_member(
    source: Any, batcher: Any, watch: PipeWatch | None = None, **options: Any
) -> AsyncIterator[PipeMember]:
    """A running pipe; it is drained and closed at exit unless it has already been stopped."""
    running = PipeMember(source, batcher, watch, **options)
    try:
        yield running
    except BaseException:
        running.task.cancel()
        await asyncio.wait([running.task])
        raise
    if not running.task.done():
        await running.stop()
    await running.task


def kafka_source(topic: str, group: str, bootstrap: str, **options: Any) -> KafkaSource:
    """A source with short timeouts."""
    times: dict[str, Any] = {**QUICK, "session_timeout": 3.0, **options}
    return KafkaSource(topic, group=group, **kafka_args(KafkaSource, bootstrap, **times))


def keyed_batcher(sink: Any, **limits: Any) -> Batcher[Any]:
    """A batcher of small batches, ordered by key and partition."""
    limits = {"max_items": 10, "max_delay": 0.01, "workers": 4, **limits}
    return Batcher(sink, key=key_of, limits=Limits(**limits))
