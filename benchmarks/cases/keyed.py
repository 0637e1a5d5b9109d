"""Order per key: the cost of a key per item, and the gain of many keys over one worker with total
order.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from sluicegate import Batch, Batcher, Capabilities, Limits

from ..feeds import DEPTH, LINGER, SIZE, check
from ..harness import NS_PER_ITEM, US_PER_ITEM, AtMost, Case, Contender, Target
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..harness import Turn

KEYS = 1_000
WORKERS = 8
WRITE = 0.01
"""Seconds of a write to the slow destination."""
BATCH = 100
"""Items per batch for it: a tenth of the keys, so that all workers find free keys."""

PLAIN = "without keys"
KEYED = f"{KEYS:,} keys"
ONCE = "every key once"
KEYED_SAFE = f"{KEYS:,} keys, safe for prefixes"
ONE_WORKER = "one worker, total order"
EIGHT_WORKERS = f"{WORKERS} workers, {KEYS:,} keys"
HOT = f"{WORKERS} workers, one hot key, safe for prefixes"


class SlowSink:
    """A sink that returns after `seconds`, and counts items."""

    def __init__(self, seconds: float, *, prefix_safe: bool) -> None:
        self.capabilities = Capabilities(key_prefix_safe=prefix_safe)
        self.count = 0
        self._seconds = seconds

    async def write(self, batch: Batch[int]) -> None:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        self.count += len(batch)


def _turn(
    items: Sequence[int],
    key: Callable[[int], object] | None,
    limits: Limits,
    *,
    seconds: float = 0.0,
    prefix_safe: bool = False,
) -> Turn:
    async def turn() -> Took:
        sink = SlowSink(seconds, prefix_safe=prefix_safe)
        watch = Stopwatch()
        async with Batcher(sink, limits=limits, key=key) as batcher:
            for item in items:
                await batcher.add(item)
        took = watch.read()
        check(sink.count, items)
        return took

    return lambda: asyncio.run(turn())


def _key(item: int) -> int:
    return item % KEYS


def _hot(item: int) -> int:
    return 0


def _own(item: int) -> int:
    return item


@contextlib.contextmanager
def prepare_cost(count: int) -> Iterator[Sequence[Contender]]:
    items = list(range(count))
    limits = Limits(max_items=SIZE, max_delay=LINGER, max_pending_items=DEPTH)
    yield (
        Contender(PLAIN, _turn(items, None, limits), ours=True),
        Contender(KEYED, _turn(items, _key, limits), ours=True),
        Contender(ONCE, _turn(items, _own, limits), ours=True),
        Contender(KEYED_SAFE, _turn(items, _key, limits, prefix_safe=True), ours=True),
        Contender(
            "one hot key, safe for prefixes",
            _turn(items, _hot, limits, prefix_safe=True),
            ours=True,
        ),
    )


@contextlib.contextmanager
def prepare_gain(count: int) -> Iterator[Sequence[Contender]]:
    items = list(range(count))
    one = Limits(max_items=BATCH, max_delay=LINGER, max_pending_items=DEPTH)
    many = Limits(max_items=BATCH, max_delay=LINGER, max_pending_items=DEPTH, workers=WORKERS)
    yield (
        Contender(ONE_WORKER, _turn(items, None, one, seconds=WRITE), ours=True),
        Contender(EIGHT_WORKERS, _turn(items, _key, many, seconds=WRITE), ours=True),
        Contender(HOT, _turn(items, _hot, many, seconds=WRITE, prefix_safe=True), ours=True),
    )


COST_CASE = Case(
    name="keyed",
    title=f"Order per key: accept items and drain them in batches of {SIZE}",
    prepare=prepare_cost,
    items=200_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(PLAIN,),
    targets=(AtMost(ONCE, PLAIN, 1.5), AtMost(KEYED, PLAIN, 1.5)),
)
GAIN_CASE = Case(
    name="keyed-workers",
    title=f"Order per key over a destination that takes {WRITE * 1000:g} ms for a batch of {BATCH}",
    prepare=prepare_gain,
    items=16_000,
    quick_items=1_600,
    unit=US_PER_ITEM,
    peers=(ONE_WORKER,),
    targets=(Target(EIGHT_WORKERS, ONE_WORKER, 7), AtMost(HOT, ONE_WORKER, 1.1)),
)
CASES = (COST_CASE, GAIN_CASE)
