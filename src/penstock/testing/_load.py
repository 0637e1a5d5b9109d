"""Load on virtual time: a destination that gets slow or refuses as real ones do, traffic that
changes, and a batcher between them.

1. The batcher, its stack and the clock are the real ones; only the destination and the producer are
   made up.
2. The same scenario gives the same run, to the last digit: all chance comes from its seed, all time
   from a `FakeClock`.
3. The producer offers what its rate says, and waits while the batcher is full: time lost there is
   not made up for.
4. A write that is cut off has cost the destination its work all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import logging
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .._core.clock import LOOP_CLOCK
from .._core.errors import ThrottledError, TooLargeError
from .._core.stacking import stack
from ..batcher import Batcher
from ..retry import Retry
from ..sinks import Timeout
from ._clock import FakeClock
from ._load_plot import draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.batch import Batch
    from .._core.sink import Decorator
    from .._core.tally import Tally
    from ..batcher import Adaptive, Limits

V = TypeVar("V")

NAME = "simulated"
"""Of the batcher."""
TICK = 0.02
"""Seconds between two offers of the producer."""
SAMPLE = 0.25
"""Seconds between two samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """How a destination answers. Times in seconds."""

    seconds: float = 0.05
    """What each write costs."""
    per_item: float = 0.0001
    """What each item adds."""
    jitter: float = 0.05
    """The mean of a random excess (exponential), as a share of the rest."""
    knee: int | None = None
    """With more writes than this at once, each further one makes all slower by a tenth."""
    items_per_second: float | None = None
    """What it can do in all; writes beyond that queue up."""
    servers: int | None = None
    """How many writes it works on at once; the others queue up, first come first served."""
    most_writes: int | None = None
    """With more writes than this at once, it throttles."""
    most_items: int | None = None
    """A write of more items is refused as too large."""
    error: Exception | None = None
    """What every write fails with."""


class LoadedSink:
    """A destination as a sink: `phases` says what holds from which second on (the first from 0)."""

    def __init__(self, phases: Sequence[tuple[float, Destination]], *, seed: int = 1) -> None:
        self.phases = phases
        self.counts: Counter[str] = Counter()
        """Writes by how they ended: `ok`, `throttled`, `too_large`, `cut_off`, `error`."""
        self.items = 0
        """Items written."""
        self.resent = 0
        """Items that came in a second or later try."""
        self.writing = 0
        """Writes under way."""
        self._random = random.Random(seed)
        self._free_at = 0.0
        self._servers: list[float] = []
        """When each of the destination's servers has done what has come so far; a heap."""

    async def write(self, batch: Batch[Any]) -> None:
        """Take as long as the destination would, or fail as it would."""
        now = LOOP_CLOCK.now()
        kind = _at(self.phases, now)
        self.writing += 1
        self.resent += len(batch) if batch.attempt > 1 else 0
        ended = "cut_off"
        try:
            self._refuse(kind, len(batch))
            await LOOP_CLOCK.sleep(self._seconds(kind, len(batch), now))
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
            work += self._queued(kind.servers, now, work)
        if kind.items_per_second is None:
            return work
        self._free_at = max(self._free_at, now) + items / kind.items_per_second
        return max(work, self._free_at - now + kind.seconds)

    def _queued(self, servers: int, now: float, work: float) -> float:
        """Seconds that a write waits for a server, which then has so much more to do."""
        while (
            len(self._servers) > servers
        ):  # some have gone away: what they had to do is done by nobody else, and holds nobody up
            heapq.heappop(self._servers)
        while len(self._servers) < servers:
            heapq.heappush(self._servers, now)
        starts = max(now, self._servers[0])
        heapq.heapreplace(self._servers, starts + work)
        return starts - now


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A destination, traffic and a batcher."""

    destination: Sequence[tuple[float, Destination]]
    """What holds from which second on."""
    traffic: Sequence[tuple[float, float]]
    """Items per second, from which second on."""
    limits: Limits
    adaptive: Adaptive | None
    seconds: float = 60.0
    timeout: float = 1.0
    """Seconds for one try."""
    decorators: tuple[Decorator[Any], ...] = ()
    """What stands between the timeout and the retry."""
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One moment of a run."""

    second: float
    workers: int
    max_items: int
    writing: int
    """Writes at the destination."""
    offered: float
    """Items that the producer has got rid of, per second since the last sample."""
    written: float
    """Items written, per second since the last sample."""


@dataclass(slots=True)
class Simulated:
    """What came of a scenario."""

    tally: Tally
    """The batcher's, after its shutdown."""
    samples: list[Sample]
    writes: Counter[str]
    """Writes by how they ended at the destination; see `LoadedSink.counts`."""
    resent: int
    """Items that were sent again, as often as they were."""

    def between(self, start: float, end: float) -> list[Sample]:
        """The samples of some of the seconds."""
        return [sample for sample in self.samples if start <= sample.second <= end]

    @property
    def digest(self) -> str:
        """Names the run: another one has another digest."""
        return hashlib.sha256(repr(self.samples).encode()).hexdigest()

    def plot(self, target: str | Path, title: str = "") -> None:
        """Draw workers, writes under way, batch size and items per second over time, as SVG or PNG
        by the ending of the name.

        Does not suspend. Raises `MissingExtra` without matplotlib, and `OSError` where the file
        cannot be written.
        """
        draw(self, Path(target), title)


def simulate(scenario: Scenario) -> Simulated:
    """Run a scenario on virtual time; blocks for the real time that its events take, and returns
    what was seen.

    The batcher's log lines are left out: what fails here is meant to, and is counted.
    """
    logger = logging.getLogger("penstock.batcher")
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
        Retry(rng=random.Random(scenario.seed)),
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
        owed += _at(scenario.traffic, clock.now()) * TICK
        items, owed = int(owed), owed % 1
        for first in range(
            0, items, scenario.limits.max_items
        ):  # a second's worth may be more than the ledger ever holds
            await batcher.add_many(range(first, min(items, first + scenario.limits.max_items)))
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


def _at(phases: Sequence[tuple[float, V]], now: float) -> V:
    """What holds now."""
    return next(value for start, value in reversed(phases) if start <= now)
