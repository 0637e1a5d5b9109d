"""When failed work is retried, and after which wait. Pure.

1. An error of a `final` class ends the work immediately. So does an unknown outcome, unless
   `resend_unknown`.
2. An error of an `uncounted` class uses up no attempt. Any other error ends the work once its
   attempts are used up: `unlisted_attempts` for an error that no classifier knows, `attempts` for
   the rest.
3. If a wait would exceed a time limit, the work ends instead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from . import checks
from .clock import LOOP_CLOCK
from .delivery.pacing import LONGEST_ASKED, asked_wait
from .errors import ErrorClass
from .keywords import known_arguments
from .public import publish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta


Jitter = Literal["full", "equal", "decorrelated", "none"]

R = TypeVar("R")


class BackoffFunction(Protocol):
    """A function that maps the number of failed attempts to the next wait."""

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        """Return the wait in seconds; `error` is the last attempt's, `waited` the previous wait."""
        ...


@known_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter. With d = min(longest, base x 2^(n - 1)), the wait
    before try n + 1 is:

    - `jitter="full"` (default): between 0 and d, which spreads the attempts of many clients best;
    - `"equal"`: between d / 2 and d;
    - `"decorrelated"`: between `base` and three times the previous wait, at most `longest`;
    - `"none"`: d.

    Durations are seconds or `timedelta`. `rng` is the source of randomness. The article
    "Exponential Backoff And Jitter" on the AWS Architecture Blog compares the four. Raises
    `ConfigError` for values out of range.
    """

    base: float | timedelta = 0.1
    longest: float | timedelta = 30.0
    jitter: Jitter = "full"
    rng: random.Random = field(default_factory=random.Random, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, usual, zero in (
            ("base", checks.LONG_DELAY, True),
            ("longest", checks.LONG_TIMEOUT, False),
        ):
            seconds = checks.seconds(name, getattr(self, name), zero=zero, usual=usual)
            object.__setattr__(self, name, seconds)
        checks.choice("jitter", self.jitter, ("full", "equal", "decorrelated", "none"))
        if not isinstance(cast("object", self.rng), random.Random):
            raise checks.bad("rng", self.rng, "must be a random.Random, such as Random(1)")

    def bound(self, tries: int, factor: float = 2.0) -> float:
        """Return the longest wait after `tries` failed tries."""
        base: Any = self.base  # in seconds, and so is the next
        longest: Any = self.longest
        try:
            wait = base * factor ** (tries - 1 if tries > 1 else 0)
        except OverflowError:
            wait = longest if base else 0.0
        return float(min(longest, wait))

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        """Return the wait in seconds after `tries` failed tries; `waited` is the previous wait."""
        if self.jitter == "decorrelated":
            base, longest = checks.in_seconds(self.base), checks.in_seconds(self.longest)
            return min(longest, self.rng.uniform(base, max(base, 3.0 * waited)))
        bound = self.bound(tries)
        if self.jitter == "none":
            return bound
        return self.rng.uniform(bound / 2 if self.jitter == "equal" else 0.0, bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Settings of a retry. They are checked by the function or class that receives them. Durations
    are seconds or `timedelta`.

    Args:
        attempts: total number of counted attempts; default 5.
        unlisted_attempts: the same, for errors that no classifier knows; default 3.
        resend_unknown: whether work of unknown outcome is retried.
        max_seconds: total time, excluding outages and throttling; `None` is no limit.
        give_up_after: limit on an outage or uninterrupted throttling; `None` is no limit.
        max_retry_after: upper limit on a destination's `Retry-After`; default 300 s.
        backoff: the wait before the next attempt; by default 0.1 s, doubled up to 30 s, without
            jitter.
        final: error classes that are never retried; by default permanent and stopped.
        uncounted: error classes that use up no attempt; default: throttling, outages, refusals.
    """

    attempts: int = 5
    unlisted_attempts: int = 3
    resend_unknown: bool = True
    max_seconds: float | timedelta | None = None
    give_up_after: float | timedelta | None = None
    max_retry_after: float | timedelta = LONGEST_ASKED
    backoff: BackoffFunction = field(default_factory=lambda: Backoff(jitter="none"))
    final: frozenset[ErrorClass] = field(
        default_factory=lambda: frozenset({ErrorClass.PERMANENT, ErrorClass.STOPPED})
    )
    uncounted: frozenset[ErrorClass] = field(
        default_factory=lambda: frozenset(
            {ErrorClass.THROTTLE, ErrorClass.UNAVAILABLE, ErrorClass.REFUSED}
        )
    )

    def is_over(self, kind: ErrorClass, counted: int) -> bool:
        """Return whether an error of `kind` ends the work; `counted` includes its attempt."""
        if kind in self.final:
            return True
        if kind in self.uncounted:
            return False
        if kind is ErrorClass.UNKNOWN and not self.resend_unknown:
            return True
        if kind is ErrorClass.UNLISTED:
            return counted >= min(self.attempts, self.unlisted_attempts)
        return counted >= self.attempts


def checked_policy(retry: object) -> RetryPolicy:
    """Check the argument named `retry`, and convert its durations. Raises `ConfigError`."""
    if not isinstance(retry, RetryPolicy):
        rule = "must be a RetryPolicy(...), such as RetryPolicy(attempts=5)"
        raise checks.bad("retry", retry, rule)
    check_backoff("retry.backoff", retry.backoff)
    return replace(
        retry,
        attempts=checks.count("retry.attempts", retry.attempts),
        unlisted_attempts=checks.count("retry.unlisted_attempts", retry.unlisted_attempts),
        resend_unknown=checks.flag("retry.resend_unknown", retry.resend_unknown),
        max_seconds=checks.optional_seconds(
            "retry.max_seconds", retry.max_seconds, usual=checks.LONG_PERIOD
        ),
        give_up_after=checks.optional_seconds(
            "retry.give_up_after", retry.give_up_after, usual=checks.LONG_PERIOD
        ),
        max_retry_after=checks.seconds(
            "retry.max_retry_after", retry.max_retry_after, usual=checks.LONG_PERIOD
        ),
        final=_classes("retry.final", retry.final),
        uncounted=_classes("retry.uncounted", retry.uncounted),
    )


def check_backoff(name: str, value: object) -> None:
    """Check that the value can be called for a wait. Raises `ConfigError`."""
    if isinstance(value, type) or not callable(value):
        rule = "must return the wait in seconds, such as Backoff(base=0.5)"
        raise checks.bad(name, value, rule)


def _classes(name: str, value: object) -> frozenset[ErrorClass]:
    given = cast("set[object]", value) if isinstance(value, (set, frozenset)) else {value}
    if given - set(ErrorClass):
        raise checks.bad(
            name,
            cast("object", value),
            "must be a set of ErrorClass, such as {ErrorClass.PERMANENT}",
        )
    return frozenset(cast("set[ErrorClass]", given))


class RetryState:
    """The failed attempts of one operation that succeeds or fails as a whole. Pure.

    A wait requested by the destination (`Retry-After`) is a minimum. All waits count towards
    `give_up_after`. `max_seconds` is measured by `now` from the first failure, without the waits
    after uncounted errors.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        class_of: Callable[[BaseException], ErrorClass],
        now: Callable[[], float] = LOOP_CLOCK.now,
    ) -> None:
        self.failed = 0
        """Failed attempts, including uncounted ones."""
        self._policy = policy
        self._class_of = class_of
        self._counted = 0
        self._now = now
        self._began: float | None = None
        """The time of the first failure; later by each wait after an uncounted error."""
        self._wait = 0.0
        self._waited = 0.0

    def wait_after(self, error: BaseException) -> float | None:
        """Count a failed attempt; return the seconds until the next one, or `None` to stop."""
        policy, kind = self._policy, self._class_of(error)
        self.failed += 1
        self._counted += kind not in policy.uncounted
        asked = asked_wait(error, checks.in_seconds(policy.max_retry_after)) or 0.0
        self._wait = max(policy.backoff(self.failed, error, self._wait), asked)
        self._waited += self._wait
        limit = policy.give_up_after
        is_late = limit is not None and self._waited > checks.in_seconds(limit)
        is_over = policy.is_over(kind, self._counted) or self._ends_late(kind)
        return None if is_late or is_over else self._wait

    def _ends_late(self, kind: ErrorClass) -> bool:
        """Return whether the next attempt would start after `max_seconds`."""
        policy = self._policy
        if policy.max_seconds is None:
            return False
        now = self._now()
        self._began = now if self._began is None else self._began
        if kind in policy.uncounted:
            self._began += self._wait
            return False
        return now + self._wait - self._began > checks.in_seconds(policy.max_seconds)


async def run_with_retries(work: Callable[[], Awaitable[R]], state: RetryState) -> R:
    """Run `work` until it succeeds or `state` gives up; then raise its last error. Suspends."""
    while True:
        try:
            return await work()
        except Exception as error:
            wait = state.wait_after(error)
            if wait is None:
                raise
        await LOOP_CLOCK.sleep(wait)


publish("sluicegate", Backoff, RetryPolicy)
