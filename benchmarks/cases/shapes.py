"""Three ways to couple a producer to its sink, as settings of one batcher, with a sink of fixed
latency: the throughput.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluicegate import Batch, Batcher, Limits

from ..feeds import DEPTH, LINGER, SIZE, check
from ..harness import US_PER_ITEM, Case, Target, name_of, placed
from ..peers.queue_recipe import QueueRecipe
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Contender, Turn

LATENCY = 0.01
"""Seconds of a write, whatever its size."""


@dataclass(frozen=True)
class Shape:
    """A way to couple producer and sink."""

    name: str
    limits: Limits
    waits: bool = False
    """Whether the producer itself waits for the write of every batch."""


SYNCHRONOUS = Shape("synchronous", Limits(max_items=SIZE), waits=True)
SMALLEST = Shape(
    f"double buffer, {2 * SIZE:,} inside", Limits(max_items=SIZE, max_pending_items=2 * SIZE)
)
LARGER = Shape(f"double buffer, {DEPTH:,} inside", Limits(max_items=SIZE))
FOUR = Shape("pipeline, 4 workers", Limits(max_items=SIZE, workers=4))
SHAPES = (SYNCHRONOUS, SMALLEST, LARGER, FOUR)
RECIPE = "asyncio.Queue, get_nowait first"


@dataclass(frozen=True)
class Source:
    """The producer's input: repeatedly `together` items after a wait of `pause` seconds."""

    name: str
    together: int
    pause: float


READY = Source("items lie ready", SIZE, 0.0)
STREAM = Source("500 after each 10 ms", SIZE, LATENCY)
BURSTS = Source("5,000 after each 100 ms", 10 * SIZE, 10 * LATENCY)
SOURCES = (READY, STREAM, BURSTS)


class SlowSink:
    """A destination that returns after `LATENCY`."""

    def __init__(self) -> None:
        self.count = 0

    async def write(self, batch: Batch[int] | Sequence[int]) -> None:
        await asyncio.sleep(LATENCY)
        self.count += len(batch)


async def _feed(
    batcher: Batcher[int], items: Sequence[int], source: Source, *, waits: bool
) -> None:
    for start in range(0, len(items), source.together):
        await asyncio.sleep(source.pause)
        for number, item in enumerate(items[start : start + source.together], 1):
            await batcher.add(item)
            if waits and number % SIZE == 0:
                await batcher.flush()


def _ours(shape: Shape, source: Source, items: Sequence[int]) -> Turn:
    async def turn() -> Took:
        sink = SlowSink()
        watch = Stopwatch()
        async with Batcher(sink, limits=shape.limits) as batcher:
            await _feed(batcher, items, source, waits=shape.waits)
        took = watch.read()
        check(sink.count, items)
        return took

    return lambda: asyncio.run(turn())


def _recipe(source: Source, items: Sequence[int]) -> Turn:
    async def turn() -> Took:
        sink = SlowSink()
        watch = Stopwatch()
        async with QueueRecipe(
            sink.write, size=SIZE, linger=LINGER, depth=DEPTH, eager=True
        ) as queue:
            for start in range(0, len(items), source.together):
                await asyncio.sleep(source.pause)
                for item in items[start : start + source.together]:
                    await queue.put(item)
        took = watch.read()
        check(sink.count, items)
        return took

    return lambda: asyncio.run(turn())


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    items = range(count)
    contenders: list[Contender] = []
    for source in SOURCES:
        contenders += [
            placed(shape.name, source.name, _ours(shape, source, items), ours=True)
            for shape in SHAPES
        ]
        contenders.append(placed(RECIPE, source.name, _recipe(source, items)))
    yield contenders


CASE = Case(
    name="shapes",
    title="A write takes 10 ms: time of producer and write together",
    prepare=prepare,
    items=25_000,
    quick_items=500,
    unit=US_PER_ITEM,
    peers=(SYNCHRONOUS.name,),
    targets=(
        Target(name_of(SMALLEST.name, STREAM.name), name_of(SYNCHRONOUS.name, STREAM.name), 1.8),
        Target(name_of(LARGER.name, BURSTS.name), name_of(SYNCHRONOUS.name, BURSTS.name), 1.5),
        Target(name_of(FOUR.name, READY.name), name_of(SYNCHRONOUS.name, READY.name), 3.5),
    ),
    along="source",
)
