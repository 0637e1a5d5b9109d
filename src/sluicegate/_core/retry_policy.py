"""When failed work is retried, and after which wait.

1. An error of a `final` class ends the work immediately. So does an unknown outcome, unless
   `resend_unknown`.
2. An error of an `uncounted` class uses up no attempt. Any other error ends the work once its
   attempts are used up: `unlisted_attempts` for an error that no classifier knows, `attempts` for
   the rest.
3. If a wait would exceed a time limit, the work ends instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, cast

from . import checks
from .errors import ErrorClass
from .patience import LONGEST_ASKED

if TYPE_CHECKING:
    from datetime import timedelta

MOST_DOUBLINGS = 64


class BackoffFunction(Protocol):
    """A function that maps the number of failed attempts to the next wait."""

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        """Return the wait in seconds; `error` is the last attempt's, `waited` the previous wait."""
        ...


@dataclass(frozen=True, slots=True)
class DoublingBackoff:
    """Waits of `first`, doubled after each attempt up to `longest`, without jitter.

    Durations are seconds or `timedelta`; 0 means no wait. Raises `ConfigError` for a bad duration.
    """

    first: float | timedelta = 0.1
    longest: float | timedelta = 30.0

    def __post_init__(self) -> None:
        for name, usual in (("first", checks.LONG_DELAY), ("longest", checks.LONG_TIMEOUT)):
            seconds = checks.seconds(name, getattr(self, name), zero=True, usual=usual)
            object.__setattr__(self, name, seconds)

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        """Return the wait in seconds after `tries` failed attempts."""
        doubled = in_seconds(self.first) * 2.0 ** min(tries - 1, MOST_DOUBLINGS)
        return min(in_seconds(self.longest), doubled)


def _final() -> frozenset[ErrorClass]:
    return frozenset({ErrorClass.PERMANENT, ErrorClass.STOPPED})


def _uncounted() -> frozenset[ErrorClass]:
    return frozenset({ErrorClass.THROTTLE, ErrorClass.UNAVAILABLE, ErrorClass.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Settings of a retry. They are checked by the function or class that receives them. Durations
    are seconds or `timedelta`.

    Args:
        attempts: total number of counted attempts.
        unlisted_attempts: the same, for errors that no classifier knows.
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
    backoff: BackoffFunction = field(default_factory=DoublingBackoff)
    final: frozenset[ErrorClass] = field(default_factory=_final)
    uncounted: frozenset[ErrorClass] = field(default_factory=_uncounted)

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


def in_seconds(duration: float | timedelta) -> float:
    """Return a checked duration in seconds."""
    return duration if isinstance(duration, (int, float)) else duration.total_seconds()


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
        rule = "must return the wait in seconds, such as DoublingBackoff(first=0.5)"
        raise checks.bad(name, value, rule)


def _classes(name: str, value: object) -> frozenset[ErrorClass]:
    if not _is_set_of_classes(value):
        raise checks.bad(name, value, "must be a set of ErrorClass, such as {ErrorClass.PERMANENT}")
    return frozenset(cast("set[ErrorClass]", value))


def _is_set_of_classes(value: object) -> bool:
    return isinstance(value, (set, frozenset)) and all(
        isinstance(each, ErrorClass) for each in cast("set[object]", value)
    )
