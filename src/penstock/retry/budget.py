"""A limit on retries across all batches. Pure: no clock, no tasks.

Every first try adds `share` of a token, every further try takes one token. So in the long run at
most `share` of the writes are tried again, however many batches there are, and retries do not
overload a destination in trouble.
"""

from __future__ import annotations

from typing import Any

from .._core import checks
from .._core.keywords import known_arguments

ROUNDING = 1e-9


@known_arguments()
class RetryBudget:
    """A budget of further tries, shared by all batches of the `Retry` it is given to; one object
    may be given to several.

    Args:
        share: further tries per first try, more than 0, at most 1; default 0.2.
        reserve: further tries available at the start, and saved up at most; default 20.

    An empty budget counts as an outage: one batch probes the destination periodically, the others
    wait for its success. No item fails because of it.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(self, share: float = 0.2, *, reserve: int = 20) -> None:
        self.share = checks.share("share", share)
        self.reserve = checks.count("reserve", reserve)
        self._tokens = float(reserve)

    @property
    def tokens(self) -> float:
        """Further tries left."""
        return self._tokens

    def deposit(self) -> None:
        """Add the share of a first try."""
        self._tokens = min(float(self.reserve), self._tokens + self.share)

    def withdraw(self) -> bool:
        """Pay for a further try; return whether the budget allowed it."""
        if self._tokens < 1.0 - ROUNDING:
            return False
        self._tokens -= 1.0
        return True

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: a copy starts with its whole reserve."""
        return {**vars(self), "_tokens": float(self.reserve)}

    def __repr__(self) -> str:
        return f"RetryBudget(share={self.share:g}, reserve={self.reserve})"
