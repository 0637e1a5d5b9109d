"""A temporary ceiling below a value that the destination has objected to. Pure.

1. Growth stops just below the last objection for a number of decisions (the hold). Then the whole
   range is open again: only an attempt shows whether the destination has changed.
2. An objection soon after a hold doubles the next hold, up to `LONGEST`. An objection during a hold
   lowers the ceiling and does not lengthen the hold, so that a recovered destination is probed.
"""

from __future__ import annotations

HOLD = 20  # decisions in the first hold, and after a hold in which an objection counts as soon
LONGEST = 640


class Ceiling:
    """The highest value that growth may currently reach."""

    def __init__(self, most: int) -> None:
        self.now = most  # the ceiling in force
        self._most = most
        self._hold = HOLD
        self._left = -HOLD

    def objected(self, at: int) -> None:
        """Start a hold below this value, to which the destination objected."""
        self.now = max(1, at - 1)
        if self._left <= 0:
            soon = self._left > -HOLD
            self._hold = min(LONGEST, 2 * self._hold) if soon else HOLD
        self._left = self._hold

    def passes(self) -> None:
        """Count a decision."""
        self._left -= 1
        if self._left <= 0:
            self.now = self._most
