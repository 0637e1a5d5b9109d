"""The cost of events that are completed later: jobs per key, and items in batches."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Consumer, Limits, flow
from sluicegate.consumer import Commits, InFlight, MemoryLog
from sluicegate.consumer.jobs import BatchItems, ItemBatcher, JobScheduler

from ..consuming import CONCURRENCY, FETCH, KEYS, RECIPE, check, nothing, recipe, records, source_of
from ..feeds import NullSink
from ..harness import MIB, NS_PER_ITEM, US_PER_ITEM, Case, Ceiling, Contender, Target
from ..peers.event_recipe import complete_later
from ..stopwatch import Clock, Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sluicegate.consumer import Record
    from sluicegate.consumer.jobs import BatchItem, EventContext, Incomplete

    from ..harness import Turn

WINDOW = 4_000
JOB = 0.01
"""Seconds of a waiting job."""
BATCH = 100
FEW_KEYS, FEW_PER_KEY = 200, 2
"""The capacity of a scheduler that is far too small."""
EACH = 10
"""Number of items of an event with many items."""
JOBS, FINALISED, SAME, ITEMS, MANY, BOUND, MEASURED, SLEEPS, PIPE, DIRECT = (
    "JobScheduler",
    "JobScheduler, with a finaliser",
    "the same in tasks and locks",
    "ItemBatcher, an item per event",
    f"ItemBatcher, {EACH} items per event",
    "concurrency / 10 ms",
    "concurrency / measured job time",
    "tasks that only sleep",
    "Batcher, fed by a pipe",
    "Batcher, fed directly",
)

TENTH, ALL = "a tenth of the events", "all events"


async def process(_: object, __: object) -> None:
    """Do nothing."""


class Waits:
    """Jobs that wait, and the time that they really took."""

    def __init__(self) -> None:
        self._seconds = 0.0

    async def process(self, _: object, __: object) -> None:
        """Process a job in 10 ms."""
        began = perf_counter()
        await asyncio.sleep(JOB)
        self._seconds += perf_counter() - began

    async def run(self, given: Sequence[Record]) -> Took:
        """Run a job for each record."""
        self._seconds = 0.0
        return await by_jobs(given, self.process)

    @property
    def bound(self) -> Took:
        """The time of the last run without any gap between the jobs of a slot."""
        return Took(self._seconds / CONCURRENCY, 0.0)


async def only_sleep(count: int) -> Took:
    """Do what the jobs do, in as many tasks, without any order."""
    left = iter(range(count))

    async def sleep() -> None:
        for _ in left:
            await asyncio.sleep(JOB)

    watch = Stopwatch()
    await asyncio.gather(*[sleep() for _ in range(CONCURRENCY)])
    return watch.read()


async def handle_all(
    given: Sequence[Record],
    handle: Callable[[EventContext], Any],
    jobs: JobScheduler[Any, Any] | ItemBatcher,
) -> Took:
    """Handle all records until the last commit, in the order of their partition."""
    log = MemoryLog(given)
    async with Consumer(
        source_of(log),
        ordering="partition",
        in_flight=InFlight(WINDOW, fetch_max=FETCH),
        timeout=5.0,
        commits=Commits(every=0.1),
    ) as consumer:
        watch = Stopwatch()
        await consumer.run_events(handle, jobs=[jobs])
        took = watch.read()
    check(log, len(given))
    return took


async def by_jobs(
    given: Sequence[Record],
    run: Callable[..., Any],
    finalise: Callable[..., Any] | None = None,
    **bounds: Any,
) -> Took:
    """Run a job for each record."""
    bounds.setdefault("concurrency", CONCURRENCY)
    jobs = JobScheduler[Any, Any](run, finalise, **bounds)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    return await handle_all(given, handle, jobs)


async def by_hand(given: Sequence[Record]) -> Took:
    """Do the same with tasks and locks."""
    source = source_of(MemoryLog(given))
    watch = Stopwatch()
    position = await complete_later(source, process, inside=WINDOW, most=FETCH)
    took = watch.read()
    assert position == len(given)
    return took


async def by_items(given: Sequence[Record], each: int) -> Took:
    """Add a number of items for each record."""
    count = 0

    async def execute(items: list[BatchItem]) -> None:
        nonlocal count
        count += len(items)

    async def callback(_: EventContext, __: BatchItems) -> None:
        """Complete the event."""

    items = ItemBatcher(execute, max_batch_size=BATCH)

    async def handle(context: EventContext) -> Incomplete:
        return items.add(BatchItems(context, context.key, callback).add(*[context.value] * each))

    took = await handle_all(given, handle, items)
    assert count == each * len(given)
    return took


async def finalise(*_: object) -> None:
    """Complete the event."""


def batcher_of(sink: NullSink) -> Batcher[Any]:
    """Make a batcher with the same limits."""
    limits = Limits(max_items=BATCH, max_delay=0.005, workers=10)
    return Batcher(sink, key=lambda record: record.key, limits=limits)


async def piped(given: Sequence[Record]) -> Took:
    """Add an item for each record, through a pipe, until the last commit."""
    log, sink = MemoryLog(given), NullSink()
    pipe = flow.pipe(
        source_of(log),
        batcher_of(sink),
        lambda message: message.record,
        in_flight=WINDOW,
        commits=Commits(every=0.1),
    )
    watch = Stopwatch()
    await pipe.run()
    took = watch.read()
    check(log, len(given))
    assert sink.count == len(given)
    return took


async def directly(given: Sequence[Record]) -> Took:
    """Add an item for each record, without a consumer."""
    sink = NullSink()
    async with batcher_of(sink) as batcher:
        watch = Stopwatch()
        for record in given:
            await batcher.add(record)
        await batcher.flush()
        took = watch.read()
    assert sink.count == len(given)
    return took


async def peak(given: Sequence[Record]) -> float:
    """Measure the peak memory, without the records, of events far beyond the capacity of their
    jobs.
    """
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        await by_jobs(given, process, max_keys=FEW_KEYS, max_per_key=FEW_PER_KEY)
        return float(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def prepare_waits(count: int) -> Iterator[Sequence[Contender]]:
    given, bound, waits = records(count), count * JOB / CONCURRENCY, Waits()
    yield (
        Contender(JOBS, lambda: asyncio.run(waits.run(given)), ours=True),
        Contender(BOUND, lambda: Took(bound, 0.0)),
        Contender(MEASURED, lambda: waits.bound),
        Contender(SLEEPS, lambda: asyncio.run(only_sleep(count))),
    )


@contextlib.contextmanager
def prepare_jobs(count: int) -> Iterator[Sequence[Contender]]:
    given = records(count)
    yield (
        Contender(JOBS, lambda: asyncio.run(by_jobs(given, process)), ours=True),
        Contender(FINALISED, lambda: asyncio.run(by_jobs(given, process, finalise)), ours=True),
        Contender(SAME, lambda: asyncio.run(by_hand(given))),
        Contender(RECIPE, recipe(given, nothing)),
    )


@contextlib.contextmanager
def prepare_items(count: int) -> Iterator[Sequence[Contender]]:
    given, few = records(count), records(max(1, count // EACH))
    yield (
        Contender(ITEMS, lambda: asyncio.run(by_items(given, 1)), ours=True),
        Contender(MANY, lambda: asyncio.run(by_items(few, EACH)), ours=True, items=EACH * len(few)),
        Contender(PIPE, lambda: asyncio.run(piped(given))),
        Contender(DIRECT, lambda: asyncio.run(directly(given))),
    )


@contextlib.contextmanager
def prepare_held(count: int) -> Iterator[Sequence[Contender]]:
    def turn(given: list[Record]) -> Turn:
        return lambda: asyncio.run(peak(given))

    yield [
        Contender(TENTH, turn(records(max(1, count // 10))), ours=True),
        Contender(ALL, turn(records(count)), ours=True),
    ]


CASES = (
    Case(
        name="events-waits",
        title=f"Jobs of 10 ms over {KEYS:,} keys, {CONCURRENCY} concurrent",
        prepare=prepare_waits,
        items=20_000,
        quick_items=500,
        is_drawn=False,
        unit=US_PER_ITEM,
        peers=(BOUND, MEASURED, SLEEPS),
        targets=tuple(Target(JOBS, peer, 0.9) for peer in (BOUND, MEASURED, SLEEPS)),
    ),
    Case(
        name="events-jobs",
        title="Jobs that do nothing, in order per key",
        prepare=prepare_jobs,
        items=100_000,
        quick_items=500,
        is_drawn=False,
        unit=NS_PER_ITEM,
        peers=(SAME, RECIPE),
        targets=(Target(JOBS, RECIPE, 3.0),),
        by=Clock.PROCESSOR,
    ),
    Case(
        name="events-items",
        title=f"Items of events in batches of {BATCH}",
        prepare=prepare_items,
        items=100_000,
        quick_items=500,
        is_drawn=False,
        unit=NS_PER_ITEM,
        peers=(PIPE, DIRECT),
        targets=(Target(ITEMS, DIRECT, 0.5), Target(MANY, DIRECT, 0.5)),
        by=Clock.PROCESSOR,
    ),
    Case(
        name="events-held",
        title="Peak memory with far more events than capacity for their jobs",
        prepare=prepare_held,
        items=100_000,
        quick_items=1_000,
        is_drawn=False,
        unit=MIB,
        peers=(),
        targets=(Ceiling(ALL, 16.0),),
    ),
)
