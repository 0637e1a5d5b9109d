"""Who may write now: flush slots, first come first served.

1. A flight holds at most one slot. Flights that come back from a backoff go before fresh batches,
   in the order in which they came back.
2. A flight may force a slot over the limit; then nobody else gets one until the count is below the
   limit again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class FifoSlots:
    """A count of flush slots and the queue of those who want one back."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._returning: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> bool:
        """Whether a slot is free."""
        return self.used < self.limit

    def resize(self, limit: int) -> None:
        """Change how many there are; those in use stay so."""
        self.limit = limit

    def take(self) -> None:
        """Take a slot, even over the limit."""
        self.used += 1

    def give(self) -> None:
        """Give a slot back."""
        self.used -= 1

    def queue(self, waiter: asyncio.Future[None]) -> None:
        """Wait for a slot, ahead of fresh batches. Whoever's future is set has the slot."""
        self._returning.append(waiter)

    def grant(self) -> bool:
        """Give a free slot to the first who waits for one; say whether somebody did."""
        while self.free and self._returning:
            waiter = self._returning.popleft()
            if not waiter.done():
                self.take()
                waiter.set_result(None)
                return True
        return False
