"""A simulated destination that slows down or refuses writes like a real one."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ThrottledError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._core.batch import Batch

V = TypeVar("V")


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
        now = LOOP_CLOCK.now()
        kind = phase_at(self.phases, now)
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
