"""The row counts that have their own statement. Pure."""

from __future__ import annotations

STALE = 1_000
"""Number of batches after which an unused row count may be replaced."""


class Sizes:
    """A bounded set of row counts that follows the traffic.

    Each row count costs a prepared statement per connection. A batcher mostly writes full batches,
    and small ones of few different sizes. If there are more row counts than statements, the
    existing ones keep theirs: replacing one in each write would prepare a statement in each write.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._turn = 0
        self._used: dict[int, int] = {}
        """The batch in which each row count was last used, the oldest first."""

    def take(self, rows: int) -> bool:
        """Whether to write this number of rows with its own statement."""
        self._turn += 1
        if self._used.pop(rows, None) is None and len(self._used) >= self._most:
            oldest = next(iter(self._used), None)
            if oldest is None or self._turn - self._used[oldest] <= STALE:
                return False
            del self._used[oldest]
        self._used[rows] = self._turn
        return True
