"""Evidence that distinguishes a refused item from a destination that refuses everything. Pure.

Every try gets a ticket when it begins. `accepted` is the highest ticket of a try in which the
destination accepted at least one item; `Search` compares it with the tickets of refused tries.
"""

from __future__ import annotations

import math

from .search import ENOUGH

FAULT_KNOWN = 600.0
"""Seconds for which, after an item was proven at fault, further refusals are assumed to be the
fault of items.
"""
MOST_NEEDED = 30


class Evidence:
    """Accepted tries, items proven at fault, and refusals that turned out not to be an item's
    fault.
    """

    def __init__(self) -> None:
        self.tickets = 0
        """The ticket of the next try."""
        self.accepted = -1
        self._fault_at = self._lied_at = -math.inf
        self._lies = 0

    def begin(self) -> int:
        """Begin a try; return its ticket."""
        self.tickets += 1
        return self.tickets - 1

    def succeeded(self, ticket: int) -> None:
        """Record that the try with this ticket succeeded, as a whole or in part."""
        self.accepted = max(self.accepted, ticket)

    def found_fault(self, now: float) -> None:
        """Record that an item was proven to be at fault for a refusal."""
        self._fault_at = now

    def lied(self, now: float) -> None:
        """Record that an item refused alone was accepted later, which makes refusals weaker evidence
        for a while.
        """
        self._lies = self.lies(now) + 1
        self._lied_at = now
        self._fault_at = -math.inf

    def lies(self, now: float) -> int:
        """Return the number of recent such items; it restarts after `FAULT_KNOWN` seconds without
        one.
        """
        return self._lies if now < self._lied_at + FAULT_KNOWN else 0

    def enough(self, now: float) -> int:
        """Return the number of refusals that prove an item's fault; see `Search`."""
        return min(ENOUGH * (1 + self.lies(now)), MOST_NEEDED)

    def knows_faults(self, now: float) -> bool:
        """Return whether an item was recently proven at fault, with no lie since."""
        return now < self._fault_at + FAULT_KNOWN
