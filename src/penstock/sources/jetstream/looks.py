"""When to ask the server for what is pending, and what it has answered. Pure."""

from __future__ import annotations

LOOK_EVERY = 0.1
"""Seconds between looks at the server, while messages are pending that are not here."""


class Looks:
    """The looks of one partition."""

    def __init__(self) -> None:
        self.due = 0.0
        """When to look next, while something waits."""
        self.away = 0
        """Messages that were pending at the server and not here, at the last look."""
        self._since: float | None = None
        """Since when some have been, without an interruption."""

    def saw(self, away: int, now: float) -> None:
        """Note a look."""
        self.due = now + LOOK_EVERY
        self.away = max(0, away)
        if not self.away:
            self._since = None
        elif self._since is None:
            self._since = now

    def waited(self, now: float) -> float:
        """Seconds for which messages have been away."""
        return 0.0 if self._since is None else now - self._since
