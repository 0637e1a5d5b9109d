"""Times of a series of tries: when the next one is due, and how long the last one took. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core.retry_policy import RetryPolicy


class TryTimes:
    """The times of one series, in the clock's monotonic seconds."""

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self.due = now
        """When the next try is due, throttles and outages aside."""
        self.not_before = now
        """The end of the wait that the destination has asked this series for."""
        self.is_early = False
        """Whether the next try comes before its time, because a shutdown has shortened the wait."""
        self.has_tried = False
        self.lasted = 0.0
        """Seconds that the last try took."""
        self._policy = policy
        self._since = now
        self._waited = 0.0

    def tried(self, seconds: float) -> None:
        """A try has ended."""
        self.has_tried = True
        self.lasted = seconds

    def schedule(self, due: float, *, not_before: float) -> None:
        """Set the time of the next try."""
        self.due, self.not_before = due, not_before
        self.is_early = False

    def resumed(self, now: float) -> None:
        """The wait for the next try has ended."""
        self.is_early = now < self.due

    def backoff(self, tries: int, error: BaseException | None = None) -> float:
        """The wait in seconds after `tries` failed tries, the last with `error`."""
        self._waited = self._policy.backoff(tries, error, self._waited)
        return self._waited

    def excuse(self, seconds: float) -> None:
        """Exclude a wait for a throttled or unavailable destination from the time limit."""
        self._since += seconds

    def is_too_late(self, when: float) -> bool:
        """Whether a try at that time would exceed the time limit."""
        most = self._policy.max_seconds
        return most is not None and when > self._since + most
