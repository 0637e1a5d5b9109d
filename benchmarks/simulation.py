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
import heapq
import io
import logging
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sluicegate import Backoff, Batcher, Retry, ThrottledError, Timeout, stack
from sluicegate.batcher import LoopClock
from sluicegate.errors import TooLargeError
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate import Batch, Limits
    from sluicegate.batcher import Adaptive, Tally
    from sluicegate.sinks import Decorator


NAME = "simulated"
"""The batcher's name."""
TICK = 0.02
"""Seconds between two offers of the producer."""
SAMPLE = 0.25
"""Seconds between two samples."""
CLOCK = LoopClock()
V = TypeVar("V")
COLOURS = ("#1f6f8b", "#e0a030")


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
    """Number of writes by result: `ok`, `throttled`, `too_large`, `cut_off`, `error`."""
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

        As SVG or PNG, by the file's suffix.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a run at one moment."""

    second: float
    workers: int
    max_items: int
    writing: int
    """Number of writes at the destination."""
    offered: float
    """Items that the batcher accepted, per second since the last sample."""
    written: float
    """Items written, per second since the last sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Behaviour of a destination. Times are in seconds."""

    seconds: float = 0.05
    """Fixed time of each write."""
    per_item: float = 0.0001
    """Time added by each item."""
    jitter: float = 0.05
    """Mean of a random, exponentially distributed excess, as a fraction of the rest."""
    knee: int | None = None
    """Number of concurrent writes above which each further one slows all by a tenth."""
    items_per_second: float | None = None
    """Its capacity; further writes are queued."""
    servers: int | None = None
    """Number of writes that it processes concurrently; the others are queued in order of arrival.
    """
    most_writes: int | None = None
    """Number of concurrent writes above which it throttles."""
    most_items: int | None = None
    """Number of items above which it refuses a write as too large."""
    error: Exception | None = None
    """The error of every write."""


class LoadedSink:
    """A destination as a sink; `phases` maps first seconds, from 0, to its behaviour."""

    def __init__(self, phases: Sequence[tuple[float, Destination]], *, seed: int = 1) -> None:
        self.phases = phases
        self.counts: Counter[str] = Counter()
        """Number of writes by result: `ok`, `throttled`, `too_large`, `cut_off`, `error`."""
        self.items = 0
        """Number of written items."""
        self.resent = 0
        """Number of items in second and later attempts."""
        self.writing = 0
        """Number of writes in flight."""
        self._random = random.Random(seed)
        self._free_at = 0.0
        self._servers: list[float] = []
        """Heap of the times at which the destination's servers become free."""

    async def write(self, batch: Batch[Any]) -> None:
        """Take as long as the destination, or fail like it."""
        now = CLOCK.now()
        kind = phase_at(self.phases, now)
        self.writing += 1
        self.resent += len(batch) if batch.attempt > 1 else 0
        ended = "cut_off"
        try:
            self._refuse(kind, len(batch))
            await CLOCK.sleep(self._seconds(kind, len(batch), now))
            self.items += len(batch)
            ended = "ok"
        except ThrottledError:
            ended = "throttled"
            raise
        except TooLargeError:
            ended = "too_large"
            raise
        except Exception:
            ended = "error"
            raise
        finally:
            self.counts[ended] += 1
            self.writing -= 1

    def _refuse(self, kind: Destination, items: int) -> None:
        if kind.error is not None:
            raise kind.error
        if kind.most_writes is not None and self.writing > kind.most_writes:
            message = f"at most {kind.most_writes} writes at once"
            raise ThrottledError(message, retry_after=0.2)
        if kind.most_items is not None and items > kind.most_items:
            message = f"at most {kind.most_items} items at once"
            raise TooLargeError(message)

    def _seconds(self, kind: Destination, items: int, now: float) -> float:
        work = kind.seconds + kind.per_item * items
        if kind.knee is not None:
            work *= 1.1 ** max(0, self.writing - kind.knee)
        work *= 1 + (self._random.expovariate(1 / kind.jitter) if kind.jitter else 0.0)
        if kind.servers is not None:
            work += self._queue(kind.servers, now, work)
        if kind.items_per_second is None:
            return work
        self._free_at = max(self._free_at, now) + items / kind.items_per_second
        return max(work, self._free_at - now + kind.seconds)

    def _queue(self, servers: int, now: float, work: float) -> float:
        """Return the seconds that a write waits for a server; add `work` to that server's work."""
        while len(self._servers) > servers:  # the work of removed servers is dropped
            heapq.heappop(self._servers)
        while len(self._servers) < servers:
            heapq.heappush(self._servers, now)
        starts = max(now, self._servers[0])
        heapq.heapreplace(self._servers, starts + work)
        return starts - now


def phase_at(phases: Sequence[tuple[float, V]], now: float) -> V:
    """Return the value of the phase at `now`."""
    return next(value for start, value in reversed(phases) if start <= now)


def draw(samples: Sequence[Sample], digest: str, target: Path, title: str) -> None:
    """Write the plot as SVG or PNG, by the target's suffix; the same run gives the same plot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawing: Any = mpl
    seconds = [sample.second for sample in samples]
    with drawing.rc_context(
        {
            "svg.hashsalt": "sluicegate",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 9,
        }
    ):
        figure: Any = Figure(figsize=(8.0, 3.6), layout="constrained")
        for axes, (unit, lines) in zip(
            figure.subplots(3, sharex=True), _curves(samples).items(), strict=True
        ):
            for colour, (label, values) in zip(COLOURS, lines.items(), strict=False):
                axes.step(seconds, values, where="post", label=label, color=colour, linewidth=1.2)
            axes.set_ylabel(unit)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
            if len(lines) > 1:
                axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.supxlabel("seconds")
        figure.suptitle(title, x=0.0, ha="left")
        if target.suffix != ".svg":
            figure.savefig(target)
            return
        text = io.StringIO()
        figure.savefig(
            text, format="svg", metadata={"Date": None, "Creator": None, "Description": digest}
        )
    target.write_text("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def _curves(samples: Sequence[Sample]) -> Mapping[str, Mapping[str, Sequence[float]]]:
    return {
        "writes": {
            "limit": [s.workers for s in samples],
            "in flight": [s.writing for s in samples],
        },
        "items": {"limit": [s.max_items for s in samples]},
        "items/s": {
            "written": [s.written for s in samples],
            "accepted": [s.offered for s in samples],
        },
    }
