"""Ways to consume the records of a memory source, as turns: Sluicegate's consumer, the usual
recipe, and a bare loop.

This module needs only Sluicegate and the standard library, so that every interpreter can run it.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import Commits, InFlight, MemoryLog, MemorySource, Record, TopicPartition

from .peers.task_recipe import consume, consume_alone
from .stopwatch import Stopwatch, TimedTurn, Took
from .workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    Handler = Callable[[object], Awaitable[object]]

KEYS = 1_000
CONCURRENCY = 100
WINDOW = 1_000
"""Maximum number of messages inside."""
FETCH = 500
VALUE = b"x" * 100
PARTITION = TopicPartition("records", 0)


def record(offset: int, key: bytes) -> Record:
    return Record(*PARTITION, offset, key, VALUE)


def records(count: int) -> list[Record]:
    """Make records of `KEYS` keys, in an order without a pattern."""
    draw = random.Random(1)
    return [record(offset, b"key-%d" % draw.randrange(KEYS)) for offset in range(count)]


def source_of(log: MemoryLog) -> MemorySource:
    return MemorySource(log, ends=True, chunk=FETCH)


def consumer_of(
    source: MemorySource, *, concurrency: int = CONCURRENCY, window: int = WINDOW
) -> Consumer:
    """Make a consumer with all defaults, a timeout, and a limit for each key; the offset map is
    stored with each commit.
    """
    return Consumer(
        source,
        concurrency=concurrency,
        in_flight=InFlight(window, per_key=window // 2, fetch_max=FETCH),
        timeout=5.0,
        commits=Commits(every=0.1),
    )


def check(log: MemoryLog, count: int) -> None:
    """Raise `AssertionError` unless all records are settled by the stored position."""
    stored = log.positions.get(PARTITION)
    if stored is None or stored.offset != count:
        raise AssertionError(f"{stored} is stored, and not {count}")


def ours(
    given: Sequence[Record],
    handler: Handler,
    *,
    concurrency: int = CONCURRENCY,
    window: int = WINDOW,
) -> TimedTurn:
    """Consume all records through the consumer, until the last commit."""

    async def turn() -> Took:
        log = MemoryLog(given)
        consumer = consumer_of(source_of(log), concurrency=concurrency, window=window)
        watch = Stopwatch()
        await consumer.run(handler)
        took = watch.read()
        check(log, len(given))
        return took

    return lambda: asyncio.run(turn())


def ours_in_batches(given: Sequence[Record], size: int) -> TimedTurn:
    """Consume all records through the consumer, in batches."""

    async def turn() -> Took:
        log = MemoryLog(given)
        consumer = consumer_of(source_of(log))
        watch = Stopwatch()
        await consumer.run_batch(nothing, size=size, max_wait=0.01)
        took = watch.read()
        check(log, len(given))
        return took

    return lambda: asyncio.run(turn())


def recipe(
    given: Sequence[Record], handler: Handler, *, concurrency: int = CONCURRENCY
) -> TimedTurn:
    """Consume all records through the usual recipe."""

    async def turn() -> Took:
        source = source_of(MemoryLog(given))
        watch = Stopwatch()
        await consume(source, handler, concurrency=concurrency, most=FETCH)
        return watch.read()

    return lambda: asyncio.run(turn())


def bare(given: Sequence[Record], handler: Handler) -> TimedTurn:
    """Consume all records one after another."""

    async def turn() -> Took:
        source = source_of(MemoryLog(given))
        watch = Stopwatch()
        await consume_alone(source, handler, most=FETCH)
        return watch.read()

    return lambda: asyncio.run(turn())


async def nothing(_: object) -> None:
    """Handle a message or a batch by doing nothing."""


async def yielding(_: object) -> None:
    """Let other tasks run once."""
    await asyncio.sleep(0)


OURS, RECIPE, BARE = "Sluicegate", "task per message, lock per key", "bare loop"
NO_OP, YIELDING, BATCHES = "no-op handlers", "handlers that yield once", "batches of 100"
SIZE = 100


def name_of(way: str, work: str) -> str:
    """Return the name of a workload."""
    return f"{way}: {work}"


def _workload(way: str, work: str, prepare: Callable[[list[Record]], TimedTurn]) -> Workload:
    def prepared(items: range) -> TimedTurn:
        return prepare(records(len(items)))

    return Workload(name_of(way, work), 100_000, prepared, ours=way == OURS)


def _of_handler(work: str, handler: Handler) -> Iterator[Workload]:
    yield _workload(OURS, work, lambda given: ours(given, handler))
    yield _workload(RECIPE, work, lambda given: recipe(given, handler))
    yield _workload(BARE, work, lambda given: bare(given, handler))


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        *_of_handler(NO_OP, nothing),
        *_of_handler(YIELDING, yielding),
        _workload(OURS, BATCHES, lambda given: ours_in_batches(given, SIZE)),
    )
}
