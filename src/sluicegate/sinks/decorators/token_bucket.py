"""A token bucket. Pure: the time is an argument.

1. Tokens arrive at `rate` per second, up to `burst`.
2. An amount passes when the bucket holds it, or when the bucket is full if the amount is larger;
   then the level becomes negative, and that debt is paid before anything else passes. So every
   amount passes eventually, and in any T seconds at most rate x T + max(burst, the largest amount)
   tokens do.
3. A pause empties the bucket and keeps it empty until it ends.
"""

from __future__ import annotations

CLOSE = 1e-9
"""The tolerance for rounding, relative to an amount."""


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

    def set_rate(self, rate: float, burst: float, now: float) -> None:
        """Change the rate from `now` on; collected tokens are kept, up to the new burst."""
        self._refresh(now)
        self._rate = rate
        self._burst = burst
        self._level = min(self._level, burst)

    def pause(self, until: float, now: float) -> None:
        """Let nothing pass until then, and collect no tokens."""
        self._refresh(now)
        self._level = min(self._level, 0.0)
        self._as_of = max(self._as_of, until)

    def _refresh(self, now: float) -> None:
        if now > self._as_of:
            self._level = min(self._burst, self._level + (now - self._as_of) * self._rate)
            self._as_of = now
