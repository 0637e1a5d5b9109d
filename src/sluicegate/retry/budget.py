"""A limit on retries across all batches. Pure: no clock, no tasks.

Every first try adds `share` of a token, and every further try takes one token. In the long run,
retries therefore add at most `share` of the load of the first tries, regardless of the number of
batches, and do not overload a destination in trouble.
"""

from __future__ import annotations

from typing import Any

from .._core import checks
from .._core.keywords import known_arguments

ROUNDING = 1e-9


@known_arguments()
class RetryBudget:
    """A budget of further tries, shared by all batches of a `Retry`. Several `Retry` decorators may
    share one budget.

    Args:
        share: further tries per first try, more than 0, at most 1; default 0.2.
        reserve: further tries available at the start, and the most that can be saved up; default
            20.

    An empty budget counts as an outage: one batch probes the destination periodically, and the
    others wait for its success. No item fails because of it.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(self, share: float = 0.2, *, reserve: int = 20) -> None:
        self.share = checks.share("share", share)
        self.reserve = checks.count("reserve", reserve)
        self._tokens = float(reserve)

    @property
    def tokens(self) -> float:
        """Number of further tries left."""
        return self._tokens

    def deposit(self) -> None:
        """Add the share of a first try."""
        self._tokens = min(float(self.reserve), self._tokens + self.share)

    def withdraw(self) -> bool:
        """Take a token for a further try; return whether one was available."""
        if self._tokens < 1.0 - ROUNDING:
            return False
        self._tokens -= 1.0
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings only: a copy starts with its full reserve."""
        return {**vars(self), "_tokens": float(self.reserve)}

    def __repr__(self) -> str:
        return f"RetryBudget(share={self.share:g}, reserve={self.reserve})"
