"""Retries of one operation that succeeds or fails as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .clock import LOOP_CLOCK
from .patience import asked_wait
from .retry_policy import in_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .errors import ErrorClass
    from .retry_policy import RetryPolicy

R = TypeVar("R")


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
        asked = asked_wait(error, in_seconds(policy.max_retry_after)) or 0.0
        self._wait = max(policy.backoff(self.failed, error, self._wait), asked)
        self._waited += self._wait
        limit = policy.give_up_after
        is_late = limit is not None and self._waited > in_seconds(limit)
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
        return now + self._wait - self._began > in_seconds(policy.max_seconds)


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
