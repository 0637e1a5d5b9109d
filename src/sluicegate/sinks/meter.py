"""Token buckets and queues, for one target and for many. Pure: the time is an argument.

1. Tokens arrive at `rate` per second, up to `burst`. An amount passes when the bucket holds it, or
   when the bucket is full if the amount is larger; then the level becomes negative, and that debt
   is paid before anything else passes. So every amount passes eventually, and in any T seconds at
   most rate x T + max(burst, the largest amount) tokens do.
2. Turns of one target pass in order of arrival. A turn whose batch is busy elsewhere is skipped and
   keeps its place.
3. When the target throttles, nothing passes until the end of the pause, and the rate is halved. It
   recovers by a tenth of the full rate each second. A throttle during a pause belongs to the same
   event and only prolongs it.
4. Beyond `most` targets, those without waiting turns are dropped, the least recently used first.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .._core.clock import Signal


CLOSE = 1e-9
"""The tolerance for rounding, relative to an amount."""

HALF = 0.5
"""Factor of the rate after a throttle."""
LEAST = 1 / 16
"""The lowest fraction of its rate for a throttled target."""
STEP = 0.1
"""Fraction of the full rate that a throttled target recovers in each step."""
STEP_SECONDS = 1.0
"""Seconds between two steps."""


class TokenBucket:
    """The level of one bucket. Times are seconds on one monotonic clock."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._as_of = now

    def due(self, amount: float, now: float) -> float:
        """The time at which `amount` may pass: `now` or later."""
        self._refresh(now)
        missing = min(amount, self._burst) - self._level
        if missing <= CLOSE * amount:
            return max(now, self._as_of)
        return self._as_of + missing / self._rate

    def take(self, amount: float) -> None:
        """Take `amount` now, whether or not it is due."""
        self._level -= amount

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate from `now` on; collected tokens are kept."""
        self._refresh(now)
        self._rate = rate

    def pause(self, until: float, now: float) -> None:
        """Let nothing pass until then, and collect no tokens."""
        self._refresh(now)
        self._level = min(self._level, 0.0)
        self._as_of = max(self._as_of, until)

    def _refresh(self, now: float) -> None:
        if now > self._as_of:
            self._level = min(self._burst, self._level + (now - self._as_of) * self._rate)
            self._as_of = now


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second, and the largest number of saved tokens."""

    per_second: float
    burst: float


@dataclass(eq=False, slots=True)
class Turn:
    """Items of one batch that pass together."""

    meter: Meter
    indices: Sequence[int]
    amount: float
    woken: Signal
    """Fires when this turn must check again."""
    is_here: bool = True
    """Whether its batch is waiting, and not busy with other items."""

    def step_aside(self) -> None:
        """Let turns of other batches pass while this one's batch is busy."""
        self.is_here = False
        self.meter.wake_first()

    def step_back(self) -> None:
        """Return to the place in the queue."""
        self.is_here = True


@dataclass(eq=False, slots=True)
class Meter:
    """The bucket and the queue of one target."""

    rate: Rate
    bucket: TokenBucket
    share: float = 1.0
    """The current fraction of the full rate, after throttling."""
    throttled_until: float = -math.inf
    _stepped_at: float = 0.0
    _queue: deque[Turn] = field(default_factory=deque[Turn])

    @classmethod
    def fresh(cls, rate: Rate, now: float) -> Meter:
        """A meter with a full bucket."""
        return cls(rate, TokenBucket(rate.per_second, rate.burst, now))

    def join(self, turn: Turn) -> None:
        """Append the turn to the queue."""
        self._queue.append(turn)

    def leave(self, turn: Turn) -> None:
        """Remove the turn from the queue."""
        if turn in self._queue:
            self._queue.remove(turn)
            self.wake_first()

    def wake_first(self) -> None:
        """Wake the first turn to check again."""
        first = self._first()
        if first is not None:
            first.woken.fire()

    def _first(self) -> Turn | None:
        return next((turn for turn in self._queue if turn.is_here), None)

    def due(self, turn: Turn, now: float) -> float:
        """The time at which the turn may pass; infinite while other turns are ahead of it."""
        if turn is not self._first():
            return math.inf
        self._recover(now)
        return self.bucket.due(turn.amount, now)

    def look_again_at(self, turn: Turn, now: float) -> float:
        """The time to check `due` again; a reduced rate may have recovered a step by then."""
        due = self.due(turn, now)
        return (
            due
            if self.share == 1.0 or due == math.inf
            else min(due, self._stepped_at + STEP_SECONDS)
        )

    def take(self, turn: Turn) -> None:
        """Let the turn pass."""
        self.bucket.take(turn.amount)
        self.leave(turn)

    def throttle(self, until: float, now: float) -> None:
        """Pause until then and reduce the rate."""
        self._recover(now)
        if now >= self.throttled_until:
            self.share = max(LEAST, self.share * HALF)
            self._apply(now)
        self.throttled_until = max(self.throttled_until, until)
        self._stepped_at = max(now, self.throttled_until)
        self.bucket.pause(until, now)

    @property
    def is_wanted(self) -> bool:
        """Whether turns are waiting."""
        return bool(self._queue)

    def _recover(self, now: float) -> None:
        if self.share < 1.0 and now >= self._stepped_at + STEP_SECONDS:
            # at least one: rounding may leave slightly less
            steps = max(1, math.floor((now - self._stepped_at) / STEP_SECONDS))
            self.share = min(1.0, self.share + steps * STEP)
            self._stepped_at += steps * STEP_SECONDS
            self._apply(now)

    def _apply(self, now: float) -> None:
        self.bucket.set_rate(self.rate.per_second * self.share, now)


class Meters:
    """A meter per target, in bounded memory."""

    def __init__(self, rate: Rate, most: int) -> None:
        self._rate = rate
        self._most = most
        self._by_key: dict[Hashable, Meter] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def of(self, key: Hashable, now: float) -> Meter:
        """The target's meter, created if it is unknown."""
        meter = self._by_key.pop(key, None)
        if meter is None:
            self._make_room()
            meter = Meter.fresh(self._rate, now)
        self._by_key[key] = meter
        return meter

    def _make_room(self) -> None:
        while len(self._by_key) >= self._most:
            unused = next((key for key, meter in self._by_key.items() if not meter.is_wanted), None)
            if unused is None:
                return  # one per waiting batch, so the ledger limits them
            del self._by_key[unused]
