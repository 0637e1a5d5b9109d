"""One token bucket. Pure: the time is an argument.

1. Tokens come at `rate` a second, up to `burst` of them.
2. An amount passes when the bucket holds it, or is full if the amount is larger than the bucket;
   then the level goes below zero, and that debt is paid before anything else passes. So every
   amount passes at some time, and in any T seconds at most rate x T + max(burst, the largest
   amount) do.
3. A pause empties the bucket and keeps it empty until it ends.
"""

from __future__ import annotations

CLOSE = 1e-9
"""A share of an amount that rounding may take away."""


class TokenBucket:
    """How many may pass, and when. Times are seconds on one clock that never goes back."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._as_of = now

    def due(self, amount: float, now: float) -> float:
        """When `amount` may pass: `now`, or later."""
        self._refresh(now)
        missing = min(amount, self._burst) - self._level
        if missing <= CLOSE * amount:
            return max(now, self._as_of)
        return self._as_of + missing / self._rate

    def take(self, amount: float) -> None:
        """`amount` passes now, whether or not it is due."""
        self._level -= amount

    def set_rate(self, rate: float, burst: float, now: float) -> None:
        """From now on tokens come at another rate; what has come so far stays, as far as the bucket
        holds it.
        """
        self._refresh(now)
        self._rate = rate
        self._burst = burst
        self._level = min(self._level, burst)

    def pause(self, until: float, now: float) -> None:
        """Let nothing pass until then, and save nothing up."""
        self._refresh(now)
        self._level = min(self._level, 0.0)
        self._as_of = max(self._as_of, until)

    def _refresh(self, now: float) -> None:
        if now > self._as_of:
            self._level = min(self._burst, self._level + (now - self._as_of) * self._rate)
            self._as_of = now
