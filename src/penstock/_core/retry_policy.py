"""When failed work is tried again, and after what wait.

1. An error of a `final` class ends the work at once. So does an unknown outcome, unless
   `resend_unknown`.
2. An error of an `uncounted` class uses up no attempt. Any other error ends the work once its
   attempts are used up: `unlisted_attempts` for an error that no classifier knows, `attempts` for
   the rest.
3. A wait that would exceed a time limit is not made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from .clock import LOOP_CLOCK
from .errors import ErrorClass
from .patience import LONGEST_ASKED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

R = TypeVar("R")

MOST_DOUBLINGS = 64


class BackoffFunction(Protocol):
    """The wait in seconds after `tries` failed tries, the last with `error`, the last wait being
    `waited`.
    """

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        """The wait in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class DoublingBackoff:
    """Waits of `first` seconds, doubled after each try up to `longest`, without jitter."""

    first: float = 0.1
    longest: float = 30.0

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        """The wait in seconds after `tries` failed tries."""
        return min(self.longest, self.first * 2.0 ** min(tries - 1, MOST_DOUBLINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Settings of a retry; checked by the function or class that takes them from a caller.

    Args:
        attempts: counted tries in all.
        unlisted_attempts: the same for an error that no classifier knows.
        resend_unknown: whether work of unknown outcome is tried again.
        max_seconds: seconds in all, outages and throttling excluded; `None` is no limit.
        give_up_after: seconds of an outage or of uninterrupted throttling; `None` is no limit.
        max_retry_after: the longest `Retry-After` of a destination that is obeyed, in seconds.
        backoff: the wait before the next try.
        final: error classes that are never tried again.
        uncounted: error classes that use up no attempt.
    """

    attempts: int = 5
    unlisted_attempts: int = 3
    resend_unknown: bool = True
    max_seconds: float | None = None
    give_up_after: float | None = None
    max_retry_after: float = LONGEST_ASKED
    backoff: BackoffFunction = field(default_factory=DoublingBackoff)
    final: frozenset[ErrorClass] = frozenset({ErrorClass.PERMANENT, ErrorClass.STOPPED})
    uncounted: frozenset[ErrorClass] = frozenset(
        {ErrorClass.THROTTLE, ErrorClass.UNAVAILABLE, ErrorClass.REFUSED}
    )

    def is_over(self, kind: ErrorClass, counted: int) -> bool:
        """Whether an error of `kind` ends the work, with `counted` counted tries, its own included."""
        if kind in self.final:
            return True
        if kind in self.uncounted:
            return False
        if kind is ErrorClass.UNKNOWN and not self.resend_unknown:
            return True
        if kind is ErrorClass.UNLISTED:
            return counted >= min(self.attempts, self.unlisted_attempts)
        return counted >= self.attempts


class RetryState:
    """The failed tries of one operation that succeeds or fails as a whole. Pure.

    All waits count towards `give_up_after`; `max_seconds` is not used.
    """

    def __init__(
        self, policy: RetryPolicy, class_of: Callable[[BaseException], ErrorClass]
    ) -> None:
        self.failed = 0
        """Failed tries, uncounted ones included."""
        self._policy = policy
        self._class_of = class_of
        self._counted = 0
        self._wait = 0.0
        self._waited = 0.0

    def wait_after(self, error: BaseException) -> float | None:
        """Count a failed try; return the seconds until the next one, `None` to give up."""
        policy, kind = self._policy, self._class_of(error)
        self.failed += 1
        self._counted += kind not in policy.uncounted
        self._wait = policy.backoff(self.failed, error, self._wait)
        self._waited += self._wait
        is_late = policy.give_up_after is not None and self._waited > policy.give_up_after
        return None if is_late or policy.is_over(kind, self._counted) else self._wait


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
