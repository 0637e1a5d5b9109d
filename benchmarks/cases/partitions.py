"""What many partitions cost one member: each pass over its partitions, the time and the memory of a
record and of a partition.

A group of 100 members shares the partitions evenly: a member of it is the same curve at a hundredth
of the partitions. Processor time counts. The source is the one in memory, without a network, so the
figures are those of the consumer. The passes are called directly, since a consumer makes them by
the clock.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from sluicegate import Consumer
from sluicegate.consumer import Commits, InFlight, MemoryLog, MemorySource, TopicPartition
from sluicegate.telemetry import PrometheusConsumerObserver

from ..harness import BYTES_PER_ITEM, US_PER_ITEM, Case, Unit, placed
from ..stopwatch import Clock, Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence

    from sluicegate import Message
    from sluicegate.consumer.engine import Engine

    from ..harness import Contender, Turn

    Pass = Callable[["Member"], Awaitable[Took]]
    Weigh = Callable[["Member"], Awaitable[float]]

POINTS = (1, 10, 100, 1_000, 5_000)
TIMES = 5
"""Repetitions of a pass that changes nothing."""
RUNNING = 500
"""Number of handlers that run while their partitions are revoked."""
WINDOW = 20_000
LANES = 10_000
HOUR = 3600.0
US = Unit("us", 1e6, per_item=False)


class Member:
    """An open consumer of a log with this number of partitions, which commits only on demand."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [TopicPartition("records", number) for number in range(partitions)]
        self.log = MemoryLog(partitions=self.partitions)
        self.source = MemorySource(self.log, partitions=())
        self.registry = CollectorRegistry()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.consumer = Consumer(
            self.source,
            concurrency=RUNNING,
            in_flight=InFlight(WINDOW),
            commits=Commits(every=HOUR, after=10**9),
            observers=[PrometheusConsumerObserver(registry=self.registry, lag_every=None)],
        )
        self.handled = 0
        self._awaited = 0
        self._are_handled = asyncio.Event()

    @property
    def engine(self) -> Engine:
        return self.consumer._open()

    @contextlib.asynccontextmanager
    async def running(self, *, assigned: bool = True) -> AsyncGenerator[None]:
        """Run until the end of the block."""
        async with self.consumer:
            run = asyncio.create_task(self.consumer.run(self._handle))
            await self.consumer.wait_ready()
            if assigned:
                self.source.assign(self.partitions)
            yield
            self.consumer.stop()
            await self.end_one_by_one()
            await run

    async def _handle(self, message: Message) -> None:
        self.handled += 1
        if self.handled == self._awaited:
            self._are_handled.set()
        if message.value == b"wait":
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    async def end_one_by_one(self) -> None:
        """End the waiting handlers, each in a cycle of the loop of its own."""
        while self._waiting:
            self._waiting.popleft().set_result(None)
            await asyncio.sleep(0)

    def expect(self, count: int) -> asyncio.Event:
        """Return the event that this number of further messages were begun."""
        self._awaited = self.handled + count
        self._are_handled = asyncio.Event()
        return self._are_handled

    async def fill(self, count: int, value: object = None) -> None:
        """Let messages be begun, of one partition after the other."""
        done = self.expect(count)
        for number in range(count):
            partition = number % len(self.partitions)
            self.log.produce("records", value, key=b"%d" % number, partition=partition)
        await done.wait()


# -- the passes over all partitions ----------------------------------------------------------------


async def assign(member: Member) -> Took:
    async with member.running(assigned=False):
        watch = Stopwatch()
        member.source.assign(member.partitions)
        return watch.read()


async def revoke(member: Member, running: int = 0) -> Took:
    async with member.running():
        if running:
            await member.fill(running, b"wait")
        watch = Stopwatch()
        revoking = asyncio.create_task(member.source.revoke(member.partitions))
        await asyncio.sleep(0)
        await member.end_one_by_one()
        await revoking
        return watch.read()


async def commit(member: Member) -> Took:
    async with member.running():
        await member.fill(len(member.partitions))
        watch = Stopwatch()
        await member.engine.committer.commit()
        took = watch.read()
        assert len(member.log.commits) == len(member.partitions)
        assert member.engine.committer.commits == 1
        return took


def _repeated(call: Callable[[Member], object]) -> Pass:
    """Measure a pass that changes nothing."""

    async def repeated(member: Member) -> Took:
        async with member.running():
            await member.fill(min(RUNNING, len(member.partitions)), b"wait")
            watch = Stopwatch()
            for _ in range(TIMES):
                call(member)
            took = watch.read()
            return Took(took.wall / TIMES, took.processor / TIMES)

    return repeated


PASSES: dict[str, Pass] = {
    "assign all": assign,
    "revoke all": revoke,
    f"revoke all, {RUNNING} running": partial(revoke, running=RUNNING),
    "commit of all": commit,
    "commit of none": _repeated(lambda member: member.engine.committer._new(closing=False)),
    "sample": _repeated(lambda member: member.engine.sampler._sample()),
    "stats()": _repeated(lambda member: member.consumer.stats()),
    "scrape": _repeated(lambda member: generate_latest(member.registry)),
    "claims to fetch from": _repeated(lambda member: member.engine.claims.wanted()),
}


def _turn(way: Pass | Weigh, partitions: int) -> Turn:
    async def turn() -> Took | float:
        return await way(Member(partitions))

    return lambda: asyncio.run(turn())


def _placed(
    ways: Mapping[str, Pass | Weigh], count: int, items: Callable[[int], int] | None = None
) -> list[Contender]:
    return [
        placed(line, at, _turn(way, at), ours=True, items=None if items is None else items(at))
        for line, way in ways.items()
        for at in POINTS
        if at <= max(count, 10)
    ]


@contextlib.contextmanager
def prepare_passes(count: int) -> Iterator[Sequence[Contender]]:
    yield _placed(PASSES, count)


# -- records ---------------------------------------------------------------------------------------

ALONE, TOGETHER = 100, 10_000


async def alone(member: Member) -> Took:
    """One record after the other, each in the next partition: from the record to its handler."""
    async with member.running():
        await member.fill(1)
        watch = Stopwatch()
        for number in range(ALONE):
            done = member.expect(1)
            member.log.produce("records", None, partition=number % len(member.partitions))
            await done.wait()
        return watch.read()


async def together(member: Member) -> Took:
    """A backlog of all partitions."""
    async with member.running(assigned=False):
        for number in range(TOGETHER):
            partition = number % len(member.partitions)
            member.log.produce("records", None, key=b"%d" % number, partition=partition)
        done = member.expect(TOGETHER)
        watch = Stopwatch()
        member.source.assign(member.partitions)
        await done.wait()
        return watch.read()


@contextlib.contextmanager
def prepare_records(count: int) -> Iterator[Sequence[Contender]]:
    yield [
        *_placed({"one at a time": alone}, count, lambda _: ALONE),
        *_placed({"backlog": together}, count, lambda _: TOGETHER),
    ]


# -- bytes -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _weighed() -> Iterator[list[int]]:
    grown: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield grown
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()


async def of_claims(member: Member) -> float:
    async with member.running(assigned=False):
        with _weighed() as grown:
            member.source.assign(member.partitions)
            await asyncio.sleep(0)
        return grown[0]


async def of_lanes(member: Member) -> float:
    """Lanes of one waiting message each, behind a running one; without the records."""
    async with member.running():
        for number in range(2 * LANES):
            partition = number % LANES % len(member.partitions)
            key = b"%d" % (number % LANES)
            member.log.produce("records", b"wait", key=key, partition=partition)
        window = member.engine.schedule.window
        with _weighed() as grown:
            await member.expect(RUNNING).wait()
            for _ in range(1_000):  # cycles of the loop for all fetches
                await asyncio.sleep(0)
        assert window.messages == 2 * LANES
        return grown[0]


async def of_maps(member: Member) -> float:
    """The stored maps if every second of 100 records of each partition is settled."""
    async with member.running():
        claims = list(member.engine.claims)
        for claim in claims:
            claim.tracker.admit(0, 99, 100)
            claim.tracker.done_all(list(range(1, 100, 2)))
        await member.engine.committer.commit()
        return sum(len(position.metadata) for position in member.log.positions.values())


@contextlib.contextmanager
def prepare_bytes(count: int) -> Iterator[Sequence[Contender]]:
    yield [
        *_placed({"idle partition": of_claims}, count, lambda at: at),
        *_placed({"key with a running and a waiting record": of_lanes}, count, lambda _: LANES),
        *_placed({"stored map, every second record": of_maps}, count, lambda at: at),
    ]


CASES = (
    Case(
        name="partitions",
        title="Passes over the partitions of a member",
        prepare=prepare_passes,
        items=POINTS[-1],
        quick_items=10,
        unit=US,
        by=Clock.PROCESSOR,
        peers=(),
        along="partitions",
        is_drawn=False,
    ),
    Case(
        name="partitions-records",
        title="Time per record, by the number of partitions of a member",
        prepare=prepare_records,
        items=POINTS[-1],
        quick_items=10,
        unit=US_PER_ITEM,
        by=Clock.PROCESSOR,
        peers=(),
        along="partitions",
        is_drawn=False,
    ),
    Case(
        name="partitions-bytes",
        title="Bytes per partition and per key of a member",
        prepare=prepare_bytes,
        items=POINTS[-1],
        quick_items=10,
        unit=BYTES_PER_ITEM,
        peers=(),
        along="partitions",
        is_drawn=False,
    ),
)
