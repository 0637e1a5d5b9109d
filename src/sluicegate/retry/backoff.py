"""Backoff between tries. Tenacity computes the exponential; the random source is an argument.

A budget limits retries across all batches: every first try adds `share` of a token, and every further try takes one token. In the long run,
retries therefore add at most `share` of the load of the first tries, regardless of the number of
batches, and do not overload a destination in trouble.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import tenacity

from .._core import checks
from .._core.keywords import known_arguments
from .._core.retry_policy import in_seconds

if TYPE_CHECKING:
    from datetime import timedelta


THROTTLE_FACTOR = 4.0
"""The factor of a `Backoff` after throttled tries."""

Jitter = Literal["full", "equal", "decorrelated", "none"]


class WaitStrategy(Protocol):
    """A value that `backoff=` accepts besides a `Backoff`: one of tenacity's `wait_*` objects, or a
    function of a `RetryCallState`.
    """

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """Return the wait in seconds."""
        ...


@known_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter. With d = min(longest, base x factor^(n - 1)), the wait
    before try n + 1 is:

    - `jitter="full"` (default): between 0 and d, which spreads the tries of many clients best;
    - `"equal"`: between d / 2 and d;
    - `"decorrelated"`: between `base` and three times the previous wait, at most `longest`;
    - `"none"`: d.

    Durations are seconds or `timedelta`. `rng` is the source of randomness. The article
    "Exponential Backoff And Jitter" on the AWS Architecture Blog compares the four. Raises
    `ConfigError` for values out of range.
    """

    base: float | timedelta = 0.1
    longest: float | timedelta = 30.0
    factor: float = 2.0
    jitter: Jitter = "full"
    rng: random.Random = field(default_factory=random.Random, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "base", checks.seconds("base", self.base, zero=True, usual=checks.LONG_DELAY)
        )
        object.__setattr__(
            self, "longest", checks.seconds("longest", self.longest, usual=checks.LONG_TIMEOUT)
        )
        factor = cast("object", self.factor)
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not factor >= 1:
            raise checks.bad("factor", factor, "must be a number of at least 1")
        checks.choice("jitter", self.jitter, ("full", "equal", "decorrelated", "none"))

    def bound(self, tries: int, factor: float | None = None) -> float:
        """Return the longest wait after `tries` failed tries."""
        base, longest = in_seconds(self.base), in_seconds(self.longest)
        exponential = tenacity.wait_exponential(
            multiplier=base, max=longest, exp_base=factor or self.factor
        )
        return float(exponential(CallState(tries)))

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """Return the wait in seconds."""
        return _wait(self, retry_state.attempt_number, retry_state.upcoming_sleep)


def _wait(backoff: Backoff, tries: int, waited: float) -> float:
    if backoff.jitter == "decorrelated":
        base, longest = in_seconds(backoff.base), in_seconds(backoff.longest)
        return min(longest, backoff.rng.uniform(base, max(base, 3.0 * waited)))
    bound = backoff.bound(tries)
    least = {"full": 0.0, "equal": bound / 2, "none": bound}[backoff.jitter]
    return backoff.rng.uniform(least, bound)


@dataclass(frozen=True, slots=True)
class StrategyBackoff:
    """Adapter that makes a wait strategy the backoff of a `RetryPolicy`."""

    strategy: Backoff | WaitStrategy

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        """Return the wait in seconds after `tries` failed tries."""
        # a `Backoff` needs no `CallState`, which costs more than the rest
        if type(self.strategy) is Backoff:
            return _wait(self.strategy, max(1, tries), waited)
        return max(0.0, float(self.strategy(CallState(tries, error, waited))))

    def throttled(self, tries: int) -> float | None:
        """Return the wait after `tries` throttled tries in a row; `None` for a strategy other than
        `Backoff`.
        """
        strategy = self.strategy
        return strategy.bound(tries, THROTTLE_FACTOR) if isinstance(strategy, Backoff) else None


class CallState(tenacity.RetryCallState):
    """The argument of tenacity's wait strategies: the number of failed tries, the last error, and
    the wait before the last try.
    """

    def __init__(self, tries: int, error: BaseException | None = None, waited: float = 0.0) -> None:
        nothing: Any = None
        super().__init__(retry_object=nothing, fn=None, args=(), kwargs={})
        self.attempt_number = max(1, tries)
        self.upcoming_sleep = waited
        if error is not None:
            self.outcome = tenacity.Future.construct(self.attempt_number, error, has_exception=True)


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
