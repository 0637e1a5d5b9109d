"""What it costs to hand in an item, with everything drained at the end, into a sink that does nothing."""

from __future__ import annotations

import asyncio
import contextlib
from time import perf_counter
from typing import TYPE_CHECKING

from penstock import Batch, Batcher, Limits, gather

from ..harness import NS_PER_ITEM, Case, Contender, Target
from ..peers import opentelemetry_batch
from ..peers.queue_recipe import QueueRecipe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ..harness import Turn

SIZE = 500
LINGER = 0.2
DEPTH = 10_000
"""Items that may wait: the default of our ledger, and the recipe's queue."""

RECIPE = "asyncio.Queue + wait_for"
EAGER = "asyncio.Queue, get_nowait first"
EMIT = "OpenTelemetry, inner emit"
ON_EMIT = "OpenTelemetry, on_emit"


class NullSink:
    """Counts, and keeps nothing."""

    def __init__(self) -> None:
        self.count = 0

    async def write(self, batch: Batch[int]) -> None:
        self.count += len(batch)


async def _add(batcher: Batcher[int], items: Sequence[int]) -> None:
    for item in items:
        await batcher.add(item)


async def _try_add(batcher: Batcher[int], items: Sequence[int]) -> None:
    for item in items:
        batcher.try_add(item)


async def _submit(batcher: Batcher[int], items: Sequence[int]) -> None:
    receipts = [await batcher.submit(item) for item in items]
    await batcher.flush()
    await gather(receipts)


async def _submit_each(batcher: Batcher[int], items: Sequence[int]) -> None:
    receipts = [await batcher.submit(item) for item in items]
    for receipt in receipts:
        await receipt


def _ours(feed: Callable[[Batcher[int], Sequence[int]], Awaitable[None]], items: Sequence[int], depth: int = DEPTH) -> Turn:
    async def turn() -> float:
        sink = NullSink()
        limits = Limits(max_items=SIZE, max_delay=LINGER, max_pending_items=depth)
        began = perf_counter()
        async with Batcher(sink, limits=limits) as batcher:
            await feed(batcher, items)
        took = perf_counter() - began
        _check(sink.count, items)
        return took

    return lambda: asyncio.run(turn())


def _add_many(items: Sequence[int]) -> Turn:
    lists = [items[start : start + SIZE] for start in range(0, len(items), SIZE)]

    async def feed(batcher: Batcher[int], _: Sequence[int]) -> None:
        for together in lists:
            await batcher.add_many(together)

    return _ours(feed, items)


def _recipe(items: Sequence[int], *, eager: bool) -> Turn:
    async def turn() -> float:
        count = 0

        async def write(batch: Sequence[int]) -> None:
            nonlocal count
            count += len(batch)

        began = perf_counter()
        async with QueueRecipe(write, size=SIZE, linger=LINGER, depth=DEPTH, eager=eager) as queue:
            for item in items:
                await queue.put(item)
        took = perf_counter() - began
        _check(count, items)
        return took

    return lambda: asyncio.run(turn())


def _emit(items: Sequence[int]) -> Turn:
    """The processor without the copy that `on_emit` makes of each record: the part that corresponds to `try_add`."""

    def turn() -> float:
        exporter = opentelemetry_batch.CountingExporter()
        began = perf_counter()
        processor = opentelemetry_batch.processor(exporter, size=SIZE, linger=LINGER, depth=len(items) + SIZE)
        batches = processor._batch_processor
        for item in items:
            batches.emit(item)  # type: ignore[arg-type]  # it never looks at what it is given
        processor.force_flush()
        processor.shutdown()  # type: ignore[no-untyped-call]  # published without annotation
        took = perf_counter() - began
        _check(exporter.count, items)
        return took

    return turn


def _on_emit(items: Sequence[int]) -> Turn:
    def turn() -> float:
        exporter = opentelemetry_batch.CountingExporter()
        record = opentelemetry_batch.record()
        began = perf_counter()
        processor = opentelemetry_batch.processor(exporter, size=SIZE, linger=LINGER, depth=len(items) + SIZE)
        for _ in items:
            processor.on_emit(record)
        processor.force_flush()
        processor.shutdown()  # type: ignore[no-untyped-call]  # published without annotation
        took = perf_counter() - began
        _check(exporter.count, items)
        return took

    return turn


def _check(count: int, items: Sequence[int]) -> None:
    if count != len(items):
        raise AssertionError(f"{count} of {len(items)} items arrived")


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    items = list(range(count))
    yield (
        Contender("add", _ours(_add, items), ours=True),
        Contender("try_add", _ours(_try_add, items, depth=max(DEPTH, count)), ours=True),
        Contender("add_many, lists of 500", _add_many(items), ours=True),
        Contender("submit, then gather", _ours(_submit, items), ours=True),
        Contender("submit, then await each", _ours(_submit_each, items), ours=True),
        Contender(EMIT, _emit(items)),
        Contender(ON_EMIT, _on_emit(items)),
        Contender(EAGER, _recipe(items, eager=True)),
        Contender(RECIPE, _recipe(items, eager=False)),
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
