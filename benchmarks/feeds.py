"""Ways to add items to a batcher, and to the recipe that most services start with, with a sink that
only counts.

This module needs only Sluicegate and the standard library, so that every interpreter can run it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluicegate import Batch, Batcher, Limits, Sink, gather

from .peers.queue_recipe import QueueRecipe
from .stopwatch import Stopwatch, TimedTurn, Took

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    Feed = Callable[[Batcher[int], Sequence[int]], Awaitable[None]]
    Run = Callable[[Coroutine[Any, Any, Took]], Took]

SIZE = 500
LINGER = 0.2
DEPTH = 10_000
"""Maximum number of waiting items: the default of the ledger, and the recipe's queue."""


class NullSink:
    """A sink that counts items, and keeps none."""

    def __init__(self) -> None:
        self.count = 0

    async def write(self, batch: Batch[int]) -> None:
        self.count += len(batch)


async def add(batcher: Batcher[int], items: Sequence[int]) -> None:
    for item in items:
        await batcher.add(item)


async def try_add(batcher: Batcher[int], items: Sequence[int]) -> None:
    for item in items:
        batcher.try_add(item)


async def submit_only(batcher: Batcher[int], items: Sequence[int]) -> None:
    """Submit items without keeping the receipts."""
    for item in items:
        await batcher.submit(item)


async def submit(batcher: Batcher[int], items: Sequence[int]) -> None:
    receipts = [await batcher.submit(item) for item in items]
    await batcher.flush()
    await gather(receipts)


async def submit_each(batcher: Batcher[int], items: Sequence[int]) -> None:
    receipts = [await batcher.submit(item) for item in items]
    for receipt in receipts:
        await receipt


def ours(
    feed: Feed,
    items: Sequence[int],
    *,
    depth: int = DEPTH,
    size: int = SIZE,
    wrap: Callable[[Sink[int]], Sink[int]] | None = None,
    run: Run = asyncio.run,
) -> TimedTurn:
    """Feed a batcher from its opening to its close. `wrap` puts decorators around the sink; `run`
    chooses the loop.
    """

    async def turn() -> Took:
        null = NullSink()
        limits = Limits(max_items=size, max_delay=LINGER, max_pending_items=depth)
        sink = null if wrap is None else wrap(null)
        watch = Stopwatch()
        async with Batcher(sink, limits=limits) as batcher:
            await feed(batcher, items)
        took = watch.read()
        check(null.count, items)
        return took

    return lambda: run(turn())


def add_many(items: Sequence[int], *, run: Run = asyncio.run) -> TimedTurn:
    """Add lists of a batch's size."""
    lists = [items[start : start + SIZE] for start in range(0, len(items), SIZE)]

    async def feed(batcher: Batcher[int], _: Sequence[int]) -> None:
        for together in lists:
            await batcher.add_many(together)

    return ours(feed, items, run=run)


def recipe(
    items: Sequence[int],
    *,
    eager: bool,
    run: Run = asyncio.run,
) -> TimedTurn:
    """Use the queue recipe in its common form, or in a more careful one (`eager`)."""

    async def turn() -> Took:
        count = 0

        async def write(batch: Sequence[int]) -> None:
            nonlocal count
            count += len(batch)

        watch = Stopwatch()
        async with QueueRecipe(write, size=SIZE, linger=LINGER, depth=DEPTH, eager=eager) as queue:
            for item in items:
                await queue.put(item)
        took = watch.read()
        check(count, items)
        return took

    return lambda: run(turn())


def check(count: int, items: Sequence[int]) -> None:
    if count != len(items):
        raise AssertionError(f"{count} of {len(items)} items arrived")
