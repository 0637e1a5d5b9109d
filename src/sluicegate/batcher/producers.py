"""The producers that wait for room in any ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core.ledger import Waiter


class Producers:
    """Producers that wait, or have an unused grant."""

    def __init__(self) -> None:
        self._waiters: set[Waiter] = set()
        self.waits = 0
        """Number of waits so far."""

    def __len__(self) -> int:
        return len(self._waiters)

    def waits_again(self) -> None:
        """Count a wait."""
        self.waits += 1

    def join(self, waiter: Waiter) -> None:
        """Add a waiting producer."""
        self._waiters.add(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Remove a producer."""
        self._waiters.discard(waiter)

    @property
    def any_granted(self) -> bool:
        """Whether a producer has an unused grant."""
        return any(waiter.granted for waiter in self._waiters)
