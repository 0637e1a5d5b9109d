"""How much may be tried again in all. Pure: no clock, no tasks.

Every first try puts `share` of a token in, every further try takes one out. So in the long run at
most `share` of the writes are tried again, however many batches there are, and a destination in
trouble is not buried under retries.
"""

from __future__ import annotations

from typing import Any

from .._core import checks

ROUNDING = 1e-9


class RetryBudget:
    """A budget of further tries, shared by all batches of the `Retry` it is given to; one object
    may be given to several.

    Args:
        share: further tries per first try, more than 0, at most 1; default 0.2.
        reserve: further tries that are there at the start, and may be saved up; default 20.

    An empty budget counts as an outage: one batch tries now and then, the others wait for its
    success. Nothing fails for it.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(self, share: float = 0.2, *, reserve: int = 20) -> None:
        self.share = checks.share("share", share)
        self.reserve = checks.count("reserve", reserve)
        self._tokens = float(reserve)

    @property
    def tokens(self) -> float:
        """What is left."""
        return self._tokens

    def deposit(self) -> None:
        """A first try was made."""
        self._tokens = min(float(self.reserve), self._tokens + self.share)

    def withdraw(self) -> bool:
        """Pay for a further try; say whether there was enough."""
        if self._tokens < 1.0 - ROUNDING:
            return False
        self._tokens -= 1.0
        return True

    def __getstate__(self) -> dict[str, Any]:
        """The description alone: a copy begins with its whole reserve."""
        return {**vars(self), "_tokens": float(self.reserve)}

    def __repr__(self) -> str:
        return f"RetryBudget(share={self.share:g}, reserve={self.reserve})"
