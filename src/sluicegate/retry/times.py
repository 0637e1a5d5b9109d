"""Times of a series of tries: when the next one is due, and the duration of the last one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.retry_policy import in_seconds

if TYPE_CHECKING:
    from .._core.retry_policy import RetryPolicy


class TryTimes:
    """The times of one series, in the clock's monotonic seconds."""

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self.due = now
        """The time at which the next try is due, apart from throttles and outages."""
        self.not_before = now
        """The end of the wait that the destination requested for this series."""
        self.is_early = False
        """Whether the next try is made before its time, because a shutdown has shortened the wait.
        """
        self.has_tried = False
        self.lasted = 0.0
        """Duration of the last try, in seconds."""
        self._policy = policy
        self._since = now
        self._waited = 0.0

    def tried(self, seconds: float) -> None:
        """Record the end of a try."""
        self.has_tried = True
        self.lasted = seconds

    def schedule(self, due: float, *, not_before: float) -> None:
        """Set the time of the next try."""
        self.due, self.not_before = due, not_before
        self.is_early = False

    def resumed(self, now: float) -> None:
        """Record the end of the wait for the next try."""
        self.is_early = now < self.due

    def backoff(self, tries: int, error: BaseException | None = None) -> float:
        """Return the wait in seconds after `tries` failed tries, the last with `error`."""
        self._waited = self._policy.backoff(tries, error, self._waited)
        return self._waited

    def excuse(self, seconds: float) -> None:
        """Exclude a wait for a throttled or unavailable destination from the time limit."""
        self._since += seconds

    def is_too_late(self, when: float) -> bool:
        """Return whether an attempt at that time would exceed the time limit."""
        most = self._policy.max_seconds
        return most is not None and when > self._since + in_seconds(most)
