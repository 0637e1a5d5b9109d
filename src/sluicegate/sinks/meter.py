"""The token bucket and the queue of a rate limit. Pure: the time is an argument.

1. Tokens arrive at `rate` per second, up to `burst`. An amount passes when the bucket holds it, or
   when the bucket is full if the amount is larger; then the level becomes negative, and that debt
   is paid before anything else passes. So every amount passes eventually, and in any T seconds at
   most rate x T + max(burst, the largest amount) tokens do.
2. Turns pass in order of arrival.
3. When the destination throttles, nothing passes until the end of the pause, and the rate is
   halved. It recovers by a tenth of the full rate each second. A throttle during a pause belongs to
   the same event and only prolongs it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core.clock import Signal


CLOSE = 1e-9
"""The tolerance for rounding, relative to an amount."""

HALF = 0.5
"""Factor of the rate after a throttle."""
LEAST = 1 / 16
"""The lowest fraction of its rate for a throttled destination."""
STEP = 0.1
"""Fraction of the full rate that a throttled destination recovers in each step."""
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


@dataclass(eq=False, slots=True)
class Turn:
    """A batch that waits to pass."""

    amount: float
    woken: Signal
    """Fires when this turn must check again."""


class Meter:
    """The bucket and the queue of a destination; the bucket is full at first."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self.share = 1.0
        """The current fraction of the full rate, after throttling."""
        self.throttled_until = -math.inf
        self._per_second = per_second
        self._bucket = TokenBucket(per_second, burst, now)
        self._stepped_at = 0.0
        self._queue: deque[Turn] = deque()

    def join(self, turn: Turn) -> None:
        """Append the turn to the queue."""
        self._queue.append(turn)

    def leave(self, turn: Turn) -> None:
        """Remove the turn from the queue, and wake the first one to check again."""
        if turn in self._queue:
            self._queue.remove(turn)
            if self._queue:
                self._queue[0].woken.fire()

    def due(self, turn: Turn, now: float) -> float:
        """The time at which the turn may pass; infinite while other turns are ahead of it."""
        if turn is not self._queue[0]:
            return math.inf
        self._recover(now)
        return self._bucket.due(turn.amount, now)

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
        self._bucket.take(turn.amount)
        self.leave(turn)

    def throttle(self, until: float, now: float) -> None:
        """Pause until then and reduce the rate."""
        self._recover(now)
        if now >= self.throttled_until:
            self.share = max(LEAST, self.share * HALF)
            self._apply(now)
        self.throttled_until = max(self.throttled_until, until)
        self._stepped_at = max(now, self.throttled_until)
        self._bucket.pause(until, now)

    def _recover(self, now: float) -> None:
        if self.share < 1.0 and now >= self._stepped_at + STEP_SECONDS:
            # at least one: rounding may leave slightly less
            steps = max(1, math.floor((now - self._stepped_at) / STEP_SECONDS))
            self.share = min(1.0, self.share + steps * STEP)
            self._stepped_at += steps * STEP_SECONDS
            self._apply(now)

    def _apply(self, now: float) -> None:
        self._bucket.set_rate(self._per_second * self.share, now)
