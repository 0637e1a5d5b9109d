"""The ledger: how much may be inside, and who waits for room.

1. Inside is what is queued, in flight or backing off, plus room that has been granted and not yet
   used.
2. Waiters are served in order; nobody overtakes them, however small.
3. A waiter that leaves after its grant hands the room on.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


@dataclass(slots=True, eq=False)
class Waiter:
    """A producer that waits for room."""

    items: int
    bytes: int
    future: asyncio.Future[None]
    granted: bool = False


class Room:
    """Pure bookkeeping of the ledger's bound. The caller tells how much is inside."""

    def __init__(self, max_items: int, max_bytes: int | None) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.bytes_inside = 0
        self._waiters: deque[Waiter] = deque()
        self._granted_items = 0
        self._granted_bytes = 0

    @property
    def contended(self) -> bool:
        """Whether somebody waits for room: newcomers must queue behind. Room that was granted is
        kept for its owner, and no reason to wait.
        """
        return bool(self._waiters)

    @property
    def waiting(self) -> int:
        """How many producers wait."""
        return len(self._waiters)

    @property
    def granted(self) -> int:
        """Items for which room was granted and not yet used."""
        return self._granted_items

    def left(self, inside: int) -> int:
        """Items that still fit."""
        return self.max_items - inside - self._granted_items

    @property
    def left_bytes(self) -> float:
        """Bytes that still fit; infinite where nothing bounds them."""
        return (
            math.inf
            if self.max_bytes is None
            else self.max_bytes - self.bytes_inside - self._granted_bytes
        )

    def fits(self, inside: int, items: int, size: int) -> bool:
        """Whether so much fits now."""
        return items <= self.left(inside) and size <= self.left_bytes

    def could_ever_fit(self, items: int, size: int) -> bool:
        """Whether so much fits into an empty ledger."""
        return items <= self.max_items and (self.max_bytes is None or size <= self.max_bytes)

    def join(self, waiter: Waiter) -> None:
        """Queue up."""
        self._waiters.append(waiter)

    def grant(self, inside: int) -> None:
        """Serve waiters in order while the first of them fits."""
        while self._waiters and self.fits(inside, self._waiters[0].items, self._waiters[0].bytes):
            waiter = self._waiters.popleft()
            if waiter.future.done():
                continue
            waiter.granted = True
            self._granted_items += waiter.items
            self._granted_bytes += waiter.bytes
            waiter.future.set_result(None)

    def used(self, waiter: Waiter) -> None:
        """A waiter has used its grant, or hands it on."""
        self._granted_items -= waiter.items
        self._granted_bytes -= waiter.bytes
        waiter.granted = False

    def leave(self, waiter: Waiter) -> None:
        """A waiter gives up, before or after its grant."""
        if waiter.granted:
            self.used(waiter)
        elif waiter in self._waiters:
            self._waiters.remove(waiter)

    def turn_away(self) -> list[Waiter]:
        """Everybody who waits, no longer in the queue."""
        waiters = list(self._waiters)
        self._waiters.clear()
        return waiters
