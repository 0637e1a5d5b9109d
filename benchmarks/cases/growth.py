"""The cost of an item by the number of earlier items: ten thousand to ten million through one
batcher.

Processor time counts: nothing waits, and a turn is long enough to be disturbed by other work on the
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from sluicegate import Batcher, Limits, gather

from ..feeds import SIZE, NullSink, add, check
from ..harness import NS_PER_ITEM, Case, Flat, placed
from ..stopwatch import Clock, Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..feeds import Feed
    from ..harness import Contender, Turn

ITEMS = 10_000_000
STEPS = (1_000, 100, 10, 1)
"""The divisors of the greatest number."""
KEPT = 5_000
"""Number of receipts that the producer keeps at a time; keeping ten million would measure the
garbage collector.
"""

ADD, SUBMIT = "add", f"submit, gathered by {KEPT:,}"


async def _submit(batcher: Batcher[int], items: Sequence[int]) -> None:
    for start in range(0, len(items), KEPT):
        receipts = [await batcher.submit(item) for item in items[start : start + KEPT]]
        await batcher.flush()
        await gather(receipts)


def _turn(feed: Feed, items: Sequence[int], times: int) -> Turn:
    """Feed and flush `times` times, so that small numbers take as long. Opening and closing, which
    cost the same for any number, are not timed.
    """

    async def turn() -> Took:
        sink = NullSink()
        took = Took(0.0, 0.0)
        for _ in range(times):
            async with Batcher(sink, limits=Limits(max_items=SIZE)) as batcher:
                watch = Stopwatch()
                await feed(batcher, items)
                await batcher.flush()
                took += watch.read()
        check(sink.count, range(times * len(items)))
        return took

    return lambda: asyncio.run(turn())


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    contenders: list[Contender] = []
    for step in STEPS:
        items = range(count // step)
        times = max(1, step // 10)
        for line, feed in ((ADD, add), (SUBMIT, _submit)):
            contenders.append(
                placed(
                    line, len(items), _turn(feed, items, times), ours=True, items=times * len(items)
                )
            )
    yield contenders


CASE = Case(
    name="growth",
    title="Cost of an item, by the number of items through one batcher",
    prepare=prepare,
    items=ITEMS,
    quick_items=5_000,
    unit=NS_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(),
    targets=(Flat(ADD, 1.15), Flat(SUBMIT, 1.15)),
    along="items",
)
