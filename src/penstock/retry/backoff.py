"""How long to wait before the next try. The arithmetic is tenacity's; the randomness is the caller's."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import tenacity

from .._core import checks

if TYPE_CHECKING:
    from datetime import timedelta


class WaitStrategy(Protocol):
    """What `backoff=` takes besides `Backoff`: any of tenacity's `wait_*` objects, or a function of a `RetryCallState`."""

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """The wait in seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with full jitter: before try n + 1, wait a random time between 0 and min(longest, base x factor^(n - 1)).

    Durations are seconds or `timedelta`. Full jitter spreads the tries of many clients over the whole interval; see "Exponential
    Backoff And Jitter" of the AWS Architecture Blog for the comparison. Raises `ConfigError` for values out of range.
    """

    base: float | timedelta = 0.1
    longest: float | timedelta = 30.0
    factor: float = 2.0
    rng: random.Random = field(default_factory=random.Random, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", checks.seconds("base", self.base, zero=True))
        object.__setattr__(self, "longest", checks.seconds("longest", self.longest))
        if self.factor < 1:
            raise checks.bad("factor", self.factor, "must be at least 1")

    def bound(self, tries: int, factor: float | None = None) -> float:
        """The longest wait after `tries` failed tries."""
        base = checks.seconds("base", self.base, zero=True)
        longest = checks.seconds("longest", self.longest)
        exponential = tenacity.wait_exponential(multiplier=base, max=longest, exp_base=factor or self.factor)
        return float(exponential(call_state(tries)))

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """The wait in seconds."""
        return self.rng.uniform(0.0, self.bound(retry_state.attempt_number))


def call_state(tries: int, error: BaseException | None = None) -> tenacity.RetryCallState:
    """What a wait strategy of tenacity wants to see: how many tries there were, and what the last one ended with."""
    nothing: Any = None
    state = tenacity.RetryCallState(retry_object=nothing, fn=None, args=(), kwargs={})
    state.attempt_number = max(1, tries)
    if error is not None:
        state.outcome = tenacity.Future.construct(state.attempt_number, error, has_exception=True)
    return state
