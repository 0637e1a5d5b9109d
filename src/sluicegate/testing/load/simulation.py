"""Simulated load on virtual time: a simulated destination, changing traffic, a batcher between
them.

1. The batcher and its stack are real; the destination and the producer are simulated.
2. The same scenario gives the same run, to the last digit: all randomness comes from its seed, all
   time from a `FakeClock`.
3. The producer offers items at its rate, and waits while the batcher is full. It does not make up
   for lost time.
4. A cancelled write costs the destination its work nevertheless.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._core.stacking import stack
from ...batcher import Batcher
from ...retry import Backoff, Retry
from ...sinks import Timeout
from ..clock.clock import FakeClock
from .destination import LoadedSink, phase_at
from .plot import draw
from .samples import Sample

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from ..._core.outcome import Tally
    from ..._core.sink import Decorator
    from ...batcher import Adaptive, Limits
    from .destination import Destination

NAME = "simulated"
"""The batcher's name."""
TICK = 0.02
"""Seconds between two offers of the producer."""
SAMPLE = 0.25
"""Seconds between two samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A destination, traffic and a batcher."""

    destination: Sequence[tuple[float, Destination]]
    """The destination's phases, by their first second."""
    traffic: Sequence[tuple[float, float]]
    """Offered items per second, by the first second of each phase."""
    limits: Limits
    adaptive: Adaptive | None
    seconds: float = 60.0
    timeout: float = 1.0
    """Timeout of an attempt, in seconds."""
    decorators: tuple[Decorator[Any], ...] = ()
    """Decorators between the timeout and the retry."""
    seed: int = 1


@dataclass(slots=True)
class Simulated:
    """The result of a scenario."""

    tally: Tally
    """The batcher's tally after its shutdown."""
    samples: list[Sample]
    writes: Counter[str]
    """Number of writes by result at the destination; see `LoadedSink.counts`."""
    resent: int
    """Number of repeated items, counted at each repetition."""

    def between(self, start: float, end: float) -> list[Sample]:
        """Return the samples between two seconds, inclusive."""
        return [sample for sample in self.samples if start <= sample.second <= end]

    @property
    def digest(self) -> str:
        """A digest that identifies the run: a different run has a different digest."""
        return hashlib.sha256(repr(self.samples).encode()).hexdigest()

    def plot(self, target: str | Path, title: str = "") -> None:
        """Draw workers, writes in flight, batch size and items per second over time.

        As SVG or PNG, by the file's suffix. Does not suspend. Raises `MissingExtra` without
        matplotlib, and `OSError` if the file cannot be written.
        """
        draw(self.samples, self.digest, Path(target), title)


def simulate(scenario: Scenario) -> Simulated:
    """Run a scenario on virtual time; blocks for the real time that its events take.

    The batcher's log lines are suppressed: failures here are intended, and counted.
    """
    logger = logging.getLogger("sluicegate.batcher")
    logger.addFilter(_is_of_others)
    try:
        with FakeClock() as clock:
            return clock.run(_run(scenario, clock))
    finally:
        logger.removeFilter(_is_of_others)


def _is_of_others(record: logging.LogRecord) -> bool:
    return f"batcher {NAME!r}" not in record.getMessage()


async def _run(scenario: Scenario, clock: FakeClock) -> Simulated:
    sink = LoadedSink(scenario.destination, seed=scenario.seed)
    whole = stack(
        sink,
        Timeout(scenario.timeout),
        *scenario.decorators,
        Retry(backoff=Backoff(rng=random.Random(scenario.seed))),
    )
    batcher: Batcher[int] = Batcher(
        whole, limits=scenario.limits, adaptive=scenario.adaptive, name=NAME
    )
    samples: list[Sample] = []
    async with batcher:
        producer = asyncio.create_task(_produce(batcher, scenario, clock))
        watcher = asyncio.create_task(_watch(batcher, sink, samples, clock))
        await clock.sleep(scenario.seconds)
        for task in (producer, watcher):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await batcher.shutdown()
    return Simulated(batcher.tally(), samples, sink.counts, sink.resent)


async def _produce(batcher: Batcher[int], scenario: Scenario, clock: FakeClock) -> None:
    owed = 0.0
    while True:
        owed += phase_at(scenario.traffic, clock.now()) * TICK
        items, owed = int(owed), owed % 1
        size = scenario.limits.max_items
        for first in range(0, items, size):  # more at a time may exceed the ledger's bound
            await batcher.add_many(range(first, min(items, first + size)))
        await clock.sleep(TICK)


async def _watch(
    batcher: Batcher[int], sink: LoadedSink, samples: list[Sample], clock: FakeClock
) -> None:
    accepted = written = 0
    while True:
        await clock.sleep(SAMPLE)
        stats = batcher.stats()
        samples.append(
            Sample(
                second=clock.now(),
                workers=stats.workers,
                max_items=stats.max_items,
                writing=sink.writing,
                offered=(stats.tally.accepted - accepted) / SAMPLE,
                written=(sink.items - written) / SAMPLE,
            )
        )
        accepted, written = stats.tally.accepted, sink.items
