"""Schedules requests for the number of pending messages, and records the results. Pure."""

from __future__ import annotations

LOOK_EVERY = 0.1
"""Seconds between requests while messages are pending elsewhere."""


class Looks:
    """The requests of one partition."""

    def __init__(self) -> None:
        self.due = 0.0
        """The time of the next request while messages wait."""
        self.away = 0
        """Number of messages pending elsewhere at the last request."""
        self._since: float | None = None
        """The time since when there have been such messages without interruption."""

    def saw(self, away: int, now: float) -> None:
        """Record the result of a request."""
        self.due = now + LOOK_EVERY
        self.away = max(0, away)
        if not self.away:
            self._since = None
        elif self._since is None:
            self._since = now

    def waited(self, now: float) -> float:
        """Return how long messages have been pending elsewhere, in seconds."""
        return 0.0 if self._since is None else now - self._since
