"""The cost of adding an item, with a drain at the end, to a sink that does nothing."""

from __future__ import annotations

import asyncio
import contextlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sluicegate import RowBatch

from ..feeds import (
    DEPTH,
    LINGER,
    SIZE,
    NullSink,
    add,
    add_many,
    check,
    ours,
    recipe,
    submit,
    submit_each,
    try_add,
)
from ..harness import NS_PER_ITEM, Case, Contender, Target
from ..peers import opentelemetry_batch
from ..stopwatch import Stopwatch, TimedTurn, Took
from ..workloads import WORKLOADS, skeleton_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..harness import Turn

RECIPE = "asyncio.Queue + wait_for"
EAGER = "asyncio.Queue, get_nowait first"
EMIT = "OpenTelemetry, inner emit"
ON_EMIT = "OpenTelemetry, on_emit"


def _emit(items: Sequence[int]) -> Turn:
    """Use the processor without the copy that `on_emit` makes of each record: the part that
    corresponds to `try_add`.
    """

    def turn() -> Took:
        exporter = opentelemetry_batch.CountingExporter()
        watch = Stopwatch()
        processor = opentelemetry_batch.processor(
            exporter, size=SIZE, linger=LINGER, depth=len(items) + SIZE
        )
        batches = processor._batch_processor
        for item in items:
            batches.emit(item)  # type: ignore[arg-type]  # it ignores its argument
        processor.force_flush()
        processor.shutdown()  # type: ignore[no-untyped-call]  # published without annotation
        took = watch.read()
        check(exporter.count, items)
        return took

    return turn


def _on_emit(items: Sequence[int]) -> Turn:
    def turn() -> Took:
        exporter = opentelemetry_batch.CountingExporter()
        record = opentelemetry_batch.record()
        watch = Stopwatch()
        processor = opentelemetry_batch.processor(
            exporter, size=SIZE, linger=LINGER, depth=len(items) + SIZE
        )
        for _ in items:
            processor.on_emit(record)
        processor.force_flush()
        processor.shutdown()  # type: ignore[no-untyped-call]  # published without annotation
        took = watch.read()
        check(exporter.count, items)
        return took

    return turn


def _async_batcher(items: Sequence[int]) -> TimedTurn:
    """Use a task for each item, as its interface requires: `process` returns after the item is
    done.
    """
    from ..peers.async_batcher_results import CountingBatcher

    async def turn() -> Took:
        batcher = CountingBatcher(size=SIZE, linger=LINGER)
        watch = Stopwatch()
        for start in range(0, len(items), DEPTH):
            await asyncio.gather(*map(batcher.process, items[start : start + DEPTH]))
        took = watch.read()
        await batcher.stop(force=True)
        check(batcher.count, items)
        return took

    return lambda: asyncio.run(turn())


def _aiojobs(items: Sequence[int]) -> TimedTurn:
    """Use a job for each batch; the batches are collected by hand."""
    import aiojobs

    async def turn() -> Took:
        sink = NullSink()
        watch = Stopwatch()
        async with aiojobs.Scheduler(limit=1, pending_limit=DEPTH // SIZE) as scheduler:
            batch: list[int] = []
            for item in items:
                batch.append(item)
                if len(batch) == SIZE:
                    await scheduler.spawn(sink.write(RowBatch(batch)))
                    batch = []
            if batch:
                await scheduler.spawn(sink.write(RowBatch(batch)))
        took = watch.read()
        check(sink.count, items)
        return took

    return lambda: asyncio.run(turn())


def _installed() -> Iterator[tuple[str, Callable[[Sequence[int]], TimedTurn]]]:
    """Return the installed ones of two libraries."""
    if find_spec("async_batcher") is not None:
        yield "async-batcher, all results awaited", _async_batcher
    if find_spec("aiojobs") is not None:
        yield "aiojobs, a job per batch", _aiojobs


def _skeleton(items: Sequence[int]) -> TimedTurn:
    return WORKLOADS[skeleton_of(SIZE)].prepare(range(len(items)))


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    items = list(range(count))
    yield (
        Contender("add", ours(add, items), ours=True),
        Contender("try_add", ours(try_add, items, depth=max(DEPTH, count)), ours=True),
        Contender("add_many, lists of 500", add_many(items), ours=True),
        Contender("submit, then gather", ours(submit, items), ours=True),
        Contender("submit, then await each", ours(submit_each, items), ours=True),
        Contender(EMIT, _emit(items)),
        Contender(ON_EMIT, _on_emit(items)),
        Contender("skeleton", _skeleton(items)),
        *(Contender(name, turn(items)) for name, turn in _installed()),
        Contender(EAGER, recipe(items, eager=True)),
        Contender(RECIPE, recipe(items, eager=False)),
    )


CASE = Case(
    name="accept",
    title="Accept items one at a time and drain them in batches of 500",
    prepare=prepare,
    items=200_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(RECIPE, EMIT),
    targets=(
        Target("add", RECIPE, 20),
        Target("try_add", EMIT, 1),
        Target("submit, then gather", RECIPE, 8),
        Target("submit, then await each", RECIPE, 8),
    ),
)
