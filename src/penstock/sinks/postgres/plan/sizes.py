"""The numbers of rows that have a statement of their own. Pure."""

from __future__ import annotations

STALE = 1_000
"""Batches after which a number that was not seen makes room for another."""


class Sizes:
    """A bounded set of numbers of rows that follows the traffic.

    Each number costs a prepared statement per connection. A batcher mostly writes full batches, and
    small ones of few numbers. Where there are more numbers than statements, those that have one
    keep it: replacing one in each write would prepare a statement in each write.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._turn = 0
        self._used: dict[int, int] = {}
        """When each number was used last, the oldest first."""

    def take(self, rows: int) -> bool:
        """Whether to write so many rows by their own statement."""
        self._turn += 1
        if self._used.pop(rows, None) is None and len(self._used) >= self._most:
            oldest = next(iter(self._used), None)
            if oldest is None or self._turn - self._used[oldest] <= STALE:
                return False
            del self._used[oldest]
        self._used[rows] = self._turn
        return True
