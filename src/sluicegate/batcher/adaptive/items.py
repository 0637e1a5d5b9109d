"""The batch size: decided after every ten attempts. Pure.

| the last ten attempts | the size |
|---|---|
| one timed out, was throttled or too large | halves, at least the floor |
| one failed without signalling load | stays |
| more than nine tenths full, in less than half the patience | a quarter more, at most the ceiling |
| less than three tenths full | a quarter less, at least the floor |
| otherwise | stays |

Every step is at least 1, so that a size below 4 can grow. A size refused as too large sets a
ceiling; a timeout or a throttle may have other causes.
"""

from __future__ import annotations

from .ceiling import Ceiling

TRIES = 10  # attempts per decision
FULL = 0.9
SPARSE = 0.3


class ItemsControl:
    """The batch size, and the attempts since its last decision."""

    def __init__(self, *, start: int, least: int, most: int, patience: float) -> None:
        self.now = start  # the size in force
        self._least = least
        self._ceiling = Ceiling(most)
        self._patience = patience
        self._since = -float("inf")
        self._restart()

    def _restart(self) -> None:
        self._tries = self._items = 0
        self._seconds = 0.0
        self._too_much = self._too_large = self._silent = False

    def heard(
        self, ended: float, began: float, items: int, *, fine: bool, too_much: bool, too_large: bool
    ) -> None:
        """Count an ended attempt, and decide at the tenth."""
        if began < self._since:  # with the size before the last halving
            return
        self._tries += 1
        self._items += items
        self._seconds += ended - began
        self._too_much |= too_much or too_large
        self._too_large |= too_large
        self._silent |= not (fine or too_much or too_large)
        if self._tries >= TRIES:
            self._decide(ended)
            self._restart()

    def _decide(self, now: float) -> None:
        average = self._items / self._tries
        self._ceiling.passes()
        if self._too_much:
            self._since = now
            if self._too_large:
                self._ceiling.objected(self.now)
            self.now = max(self._least, self.now // 2)
        elif self._silent:
            return
        elif average > FULL * self.now and self._seconds / self._tries < self._patience / 2:
            self.now = max(self.now, min(self._ceiling.now, self.now + self._step))
        elif average < SPARSE * self.now:
            self.now = max(self._least, self.now - self._step)

    @property
    def _step(self) -> int:
        return max(1, self.now // 4)
