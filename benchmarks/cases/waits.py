"""The same shapes under bursts at fixed times: the waiting time of an item until it is accepted,
and until it is delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from time import perf_counter
from typing import TYPE_CHECKING

from sluicegate import Batch, Batcher

from ..feeds import SIZE, check
from ..harness import MS, Case, placed
from .shapes import LATENCY, SHAPES, SYNCHRONOUS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Contender, Turn
    from .shapes import Shape

BURST = 1_000
PERIOD = 0.04
"""Seconds between bursts: a worker alone is busy for half of it."""

ACCEPTED, ACCEPTED_99 = "accepted, median", "accepted, 99 %"
DELIVERED, DELIVERED_99 = "delivered, median", "delivered, 99 %"


class TimingSink:
    """A sink that returns after `LATENCY`; an item is the time at which it was due."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def write(self, batch: Batch[float]) -> None:
        await asyncio.sleep(LATENCY)
        now = perf_counter()
        self.waits += [now - due for due in batch]


class Run:
    """One shape under the bursts. All figures of a round come from the same run."""

    def __init__(self, shape: Shape, bursts: int) -> None:
        self._shape = shape
        self._bursts = bursts
        self._accepted: list[float] = []
        self._delivered: list[float] = []

    def contenders(self) -> list[Contender]:
        """Return the contenders: the first one runs, the others read its measurements."""
        looks: dict[str, Turn] = {
            ACCEPTED: self._run,
            ACCEPTED_99: lambda: _nearly_all(self._accepted),
            DELIVERED: lambda: statistics.median(self._delivered),
            DELIVERED_99: lambda: _nearly_all(self._delivered),
        }
        return [placed(self._shape.name, at, turn, ours=True) for at, turn in looks.items()]

    def _run(self) -> float:
        self._accepted, self._delivered = asyncio.run(self._measure())
        return statistics.median(self._accepted)

    async def _measure(self) -> tuple[list[float], list[float]]:
        sink, accepted = TimingSink(), list[float]()
        async with Batcher(sink, limits=self._shape.limits) as batcher:
            began = perf_counter()
            for burst in range(self._bursts):
                due = began + burst * PERIOD
                await asyncio.sleep(max(0.0, due - perf_counter()))
                for number in range(1, BURST + 1):
                    await batcher.add(due)
                    accepted.append(perf_counter() - due)
                    if self._shape.waits and number % SIZE == 0:
                        await batcher.flush()
        check(len(sink.waits), range(self._bursts * BURST))
        return accepted, sink.waits


def _nearly_all(waits: Sequence[float]) -> float:
    return statistics.quantiles(waits, n=100)[98]


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    yield [contender for shape in SHAPES for contender in Run(shape, count // BURST).contenders()]


CASE = Case(
    name="waits",
    title=f"{BURST:,} items every {PERIOD * 1000:g} ms, and a write takes {LATENCY * 1000:g} "
    "ms: waiting time of an item",
    prepare=prepare,
    items=30 * BURST,
    quick_items=3 * BURST,
    unit=MS,
    peers=(SYNCHRONOUS.name,),
    along="until it is",
)
