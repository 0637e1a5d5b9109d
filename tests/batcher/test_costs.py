"""The cost of a batch and of an item, counted in calls and objects instead of seconds.

One table has the ceilings, slightly above the counts when they were set. A change that makes the
work cheaper should lower them; a change that needs more has to justify it.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from sluicegate import (
    Batch,
    Batcher,
    CircuitBreaker,
    DeadLetter,
    Limits,
    Retry,
    Sink,
    Timeout,
    TransientError,
    stack,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

WARM_UP = 5
"""Batches before the counted ones."""


class CountingSink:
    """Counts, and keeps no batch. While `gate` is closed, writes wait."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.count = 0

    async def write(self, batch: Batch[int]) -> None:
        if not self.gate.is_set():
            await self.gate.wait()
        self.count += len(batch)


class FailingTwice(CountingSink):
    """Only every third write succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self._writes = itertools.count(1)

    async def write(self, batch: Batch[int]) -> None:
        if next(self._writes) % 3:
            raise TransientError("not yet")
        await super().write(batch)


def four(sink: Sink[int]) -> Sink[int]:
    return stack(sink, Timeout(5.0), CircuitBreaker(), Retry(), DeadLetter(lambda _: None))


def retried(sink: Sink[int]) -> Sink[int]:
    return stack(sink, Retry(backoff=tenacity.wait_none()))


@dataclass(frozen=True)
class Work:
    """Batches of `size` items, added in one way."""

    size: int
    submits: bool = False
    settings: Callable[[], dict[str, Any]] = dict
    wrap: Callable[[Sink[int]], Sink[int]] = lambda sink: sink
    sink: type[CountingSink] = CountingSink

    @property
    def batches(self) -> int:
        """The number of counted batches."""
        return 100 if self.size < 100 else 10

    @property
    def items(self) -> int:
        """The number of items in all batches."""
        return (WARM_UP + self.batches) * self.size

    async def feed(self, batcher: Batcher[int], batches: int) -> None:
        way = batcher.submit if self.submits else batcher.add
        for item in range(batches * self.size):
            await way(item)


@dataclass(frozen=True)
class Most:
    """Ceilings for a batch: calls of Python and C functions from adding to its end; objects known
    to the collector while it waits; and those that only the collector can free afterwards.
    """

    python: float
    c: float
    waiting: float
    garbage: float = 0.5
    garbage_312: float = 0.5
    """The same from Python 3.12 on, where a frame in a traceback keeps its callers."""


CEILINGS: dict[str, tuple[Work, Most]] = {
    "add, 1": (Work(1), Most(136, 75, 3.2)),
    "add, 10": (Work(10), Most(182, 125, 3.2)),
    "add, 500": (Work(500), Most(806, 1694, 3.2)),
    "submit, 1": (Work(1, submits=True), Most(141, 79, 5.3)),
    "submit, 500": (Work(500, submits=True), Most(1860, 1698, 530)),
    "five tenants, 500": (
        Work(500, settings=lambda: {"tenant": lambda i: i % 5}),
        Most(2055, 3885, 5.7),
    ),
    "1,000 keys, 500": (
        Work(500, settings=lambda: {"key": lambda i: i % 1000}),
        Most(1882, 2750, 579),
    ),
    "four decorators, 1": (Work(1, wrap=four), Most(251, 129, 3.2)),
    "four decorators, 500": (Work(500, wrap=four), Most(917, 1748, 3.2)),
    "Retry after two failures, 1": (
        Work(1, wrap=retried, sink=FailingTwice),
        Most(675, 390, 3.2, garbage_312=51),
    ),
    "Retry after two failures, 500": (
        Work(500, wrap=retried, sink=FailingTwice),
        Most(1328, 2002, 3.2, garbage_312=50),
    ),
}
"""By the way of adding and the batch size; in a batch of 500, an item costs a five-hundredth of it.

One C call per item determines the thread: an item from another thread is always refused.
"""


def opened(work: Work, sink: CountingSink) -> Batcher[int]:
    limits = Limits(
        max_items=work.size,
        max_delay=3600.0,
        max_pending_items=2 * (work.batches + WARM_UP) * work.size,
    )
    return Batcher(work.wrap(sink), limits=limits, **work.settings())


async def calls(work: Work) -> tuple[float, float]:
    """Calls of Python and C functions for a batch."""
    counts = {"call": 0, "c_call": 0}

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        if event in counts:
            counts[event] += 1

    sink = work.sink()
    async with opened(work, sink) as batcher:
        await work.feed(batcher, WARM_UP)
        await batcher.flush()
        before = sys.getprofile()
        gc.collect()
        gc.disable()  # objects left by other tests may have finalizers
        sys.setprofile(count)
        try:
            await work.feed(batcher, work.batches)
            await batcher.flush()
        finally:
            sys.setprofile(before)
            gc.enable()
    assert sink.count == work.items
    return counts["call"] / work.batches, counts["c_call"] / work.batches


async def objects(work: Work) -> tuple[float, float]:
    """Objects known to the collector for a batch: while it waits, and after its end."""
    sink = work.sink()
    async with opened(work, sink) as batcher:
        await work.feed(batcher, WARM_UP - 1)
        await batcher.flush()
        sink.gate.clear()
        await work.feed(batcher, 1)  # in flight, with its timers
        await asyncio.sleep(0)
        gc.collect()
        gc.disable()
        try:
            start = len(gc.get_objects())
            await work.feed(batcher, work.batches)
            waiting = len(gc.get_objects()) - start
            sink.gate.set()
            await batcher.flush()
            garbage = len(gc.get_objects()) - start
        finally:
            gc.enable()
    assert sink.count == work.items
    return waiting / work.batches, garbage / work.batches


@pytest.mark.parametrize("name", CEILINGS)
def test_a_batch_needs_no_more_calls_than_its_ceilings(name: str) -> None:
    work, most = CEILINGS[name]
    python, c = asyncio.run(calls(work))
    assert python <= most.python
    assert c <= most.c


@pytest.mark.parametrize("name", CEILINGS)
def test_a_batch_needs_no_more_objects_than_its_ceilings(name: str) -> None:
    work, most = CEILINGS[name]
    waiting, garbage = asyncio.run(objects(work))
    assert waiting <= most.waiting + (sys.version_info >= (3, 14))  # of the interpreter
    assert garbage <= (most.garbage if sys.version_info < (3, 12) else most.garbage_312)


@pytest.mark.parametrize("name", ["add, 500", "submit, 500"])
def test_one_more_call_per_item_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work, most = CEILINGS[name]
    way = "submit" if work.submits else "add"
    plain = getattr(Batcher, way)

    def planted(batcher: Batcher[int], item: int) -> Any:
        len(())
        return plain(batcher, item)

    monkeypatch.setattr(Batcher, way, planted)
    python, c = asyncio.run(calls(work))
    assert python > most.python
    assert c > most.c


def test_a_few_more_calls_per_batch_are_seen() -> None:
    class Chatty(CountingSink):
        """Makes twenty calls for each write."""

        async def write(self, batch: Batch[int]) -> None:
            for _ in range(20):
                self.gate.is_set()
            await super().write(batch)

    _, most = CEILINGS["add, 1"]
    python, _ = asyncio.run(calls(Work(1, sink=Chatty)))
    assert python > most.python


def test_an_object_that_stays_behind_is_seen() -> None:
    class Hoarder(CountingSink):
        """Keeps a list for each write, in a cycle."""

        async def write(self, batch: Batch[int]) -> None:
            kept: list[Any] = []
            kept.append(kept)
            await super().write(batch)

    _, most = CEILINGS["add, 10"]
    _, garbage = asyncio.run(objects(Work(10, sink=Hoarder)))
    assert garbage > most.garbage


if __name__ == "__main__":  # the present counts, for lowering the ceilings
    for name, (work, _) in CEILINGS.items():
        counted = (*asyncio.run(calls(work)), *asyncio.run(objects(work)))
        sys.stdout.write(f"{name:32}|" + "|".join(f"{each:10.2f}" for each in counted) + "\n")
