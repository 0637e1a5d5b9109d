"""The producers that wait for room, in whatever ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core.ledger import Waiter


class Producers:
    """Producers that wait, or were granted room just now."""

    def __init__(self) -> None:
        self._waiters: set[Waiter] = set()
        self.waits = 0
        """How often a producer had to wait."""

    def __len__(self) -> int:
        return len(self._waiters)

    def waits_again(self) -> None:
        """A producer has to wait."""
        self.waits += 1

    def join(self, waiter: Waiter) -> None:
        """A producer waits."""
        self._waiters.add(waiter)

    def leave(self, waiter: Waiter) -> None:
        """It waits no longer."""
        self._waiters.discard(waiter)

    @property
    def any_granted(self) -> bool:
        """Whether one is on its way in."""
        return any(waiter.granted for waiter in self._waiters)
