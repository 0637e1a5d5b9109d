"""Flush slots, first come first served.

1. A flight has at most one slot. Flights that return from a backoff precede fresh batches, in the
   order of their return.
2. A flight may force a slot over the limit. Then no other flight gets one until the count is below
   the limit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class FifoSlots:
    """A count of flush slots, and the queue of returning flights."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._returning: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> bool:
        """Whether a slot is free."""
        return self.used < self.limit

    def resize(self, limit: int) -> None:
        """Change the limit; slots in use are kept."""
        self.limit = limit

    def take(self) -> None:
        """Take a slot, even over the limit."""
        self.used += 1

    def give(self) -> None:
        """Release a slot."""
        self.used -= 1

    def queue(self, waiter: asyncio.Future[None]) -> None:
        """Queue a future for a slot, ahead of fresh batches; it is set together with the slot."""
        self._returning.append(waiter)

    def grant(self) -> bool:
        """Give a free slot to the first waiter; return whether there was one."""
        while self._returning and self.free:
            waiter = self._returning.popleft()
            if not waiter.done():
                self.take()
                waiter.set_result(None)
                return True
        return False
