"""What a destination has objected to is not tried again at once. Pure.

1. Growth stops just below the last objection, for a number of decisions. Then the whole range is
   open again: the destination may have changed, and only trying tells.
2. An objection soon after that means that it has not: the next hold is twice as long, up to
   `LONGEST`. One during a hold lowers the ceiling and does not lengthen the hold: a destination in
   trouble is asked again when it has recovered.
"""

from __future__ import annotations

HOLD = 20
"""Decisions that the first hold takes, and within which an objection counts as soon."""
LONGEST = 640


class Ceiling:
    """How far something may grow now."""

    def __init__(self, most: int) -> None:
        self.now = most
        """The ceiling in force."""
        self._most = most
        self._hold = HOLD
        self._left = -HOLD

    def objected(self, at: int) -> None:
        """The destination has objected to this much."""
        self.now = max(1, at - 1)
        if self._left <= 0:
            soon = self._left > -HOLD
            self._hold = min(LONGEST, 2 * self._hold) if soon else HOLD
        self._left = self._hold

    def passes(self) -> None:
        """A decision is made."""
        self._left -= 1
        if self._left <= 0:
            self.now = self._most
