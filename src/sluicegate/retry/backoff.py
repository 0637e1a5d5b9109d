"""Tenacity's waits in a retry; and the retry budget.

A budget limits retries across all batches: every first try adds `share` of a token, and every
retry takes one token. In the long run, retries therefore add at most `share` of the load of the
first tries, regardless of the number of batches, and do not overload a failing destination.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import tenacity

from .._core import checks
from .._core.keywords import known_arguments

if TYPE_CHECKING:
    from collections.abc import Callable

THROTTLE_FACTOR = 4.0
"""The factor of a `Backoff` after throttled tries."""

TenacityWait: TypeAlias = "Callable[[tenacity.RetryCallState], float]"
"""One of tenacity's `wait_*` objects, or a function of a `RetryCallState`."""

ROUNDING = 1e-9
"""Part of a token that may be missing because of rounding."""


class _CallState(tenacity.RetryCallState):
    """The argument of tenacity's objects: the number of failed tries, the last error, and the wait
    before the last try.
    """

    def __init__(self, tries: int, error: BaseException | None, waited: float) -> None:
        nothing: Any = None
        super().__init__(retry_object=nothing, fn=None, args=(), kwargs={})
        self.attempt_number = max(1, tries)
        self.upcoming_sleep = waited
        self.start_time = self.outcome_timestamp = 0.0
        if error is not None:
            self.outcome = tenacity.Future.construct(self.attempt_number, error, has_exception=True)


@dataclass(frozen=True, slots=True)
class WaitBackoff:
    """Adapter that makes one of tenacity's wait objects the backoff of a `RetryPolicy`."""

    wait: TenacityWait

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        """Return the wait in seconds after `tries` failed tries."""
        return max(0.0, float(self.wait(_CallState(tries, error, waited))))


@known_arguments()
class RetryBudget:
    """A budget of retries, shared by all batches of a `Retry`. Several `Retry` decorators may
    share one budget.

    Args:
        share: retries per first attempt, more than 0, at most 1; default 0.2.
        reserve: retries available at the start, and the maximum that can be saved up; default
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
        """Number of retries left."""
        return self._tokens

    def deposit(self) -> None:
        """Add the share of a first try."""
        self._tokens = min(float(self.reserve), self._tokens + self.share)

    def withdraw(self) -> bool:
        """Take a token for a retry; return whether one was available."""
        if self._tokens < 1.0 - ROUNDING:
            return False
        self._tokens -= 1.0
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings only: a copy starts with its full reserve."""
        return {**vars(self), "_tokens": float(self.reserve)}

    def __repr__(self) -> str:
        return f"RetryBudget(share={self.share:g}, reserve={self.reserve})"
