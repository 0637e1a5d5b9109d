"""Deficit round robin: whose turn it is. Pure.

1. A member at the front without credit gets `quantum` times its weight. It sends while it has
   credit, is charged for each batch, and then goes to the back. So while two members have items to
   send, the ratio of their sent amounts is that of their weights, up to one turn of each.
2. Credit is not saved: a member with nothing to send loses it. A debt stays until `forget`.

M. Shreedhar, G. Varghese: Efficient Fair Queuing Using Deficit Round Robin, SIGCOMM 1995.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

M = TypeVar("M", bound="Hashable")


class Turns(Generic[M]):
    """The members with items to send, in the order of their turns."""

    def __init__(self) -> None:
        self._ring: OrderedDict[M, float] = OrderedDict()
        """The members in order, with their weights."""
        self._credit: dict[M, float] = {}

    def give(self, member: M, weight: float) -> None:
        """Put a member at the end of the round, unless it is already in it."""
        if member not in self._ring:
            self._ring[member] = weight

    def first(self, quantum: float) -> M | None:
        """Return the member whose turn it is; `None` without members."""
        passed = 0
        while self._ring:
            member, weight = next(iter(self._ring.items()))
            credit = self._credit.get(member, 0.0)
            if credit > 0:
                return member
            if passed == len(self._ring):
                self._skip_rounds(quantum)
                credit, passed = self._credit.get(member, 0.0), 0
            self._credit[member] = credit + quantum * weight
            if self._credit[member] > 0:
                return member
            self._ring.move_to_end(member)
            passed += 1
        return None

    def _skip_rounds(self, quantum: float) -> None:
        """If all are in debt for several turns, skip the rounds in which none would send."""
        rounds = min(
            -self._credit[member] // (quantum * weight) for member, weight in self._ring.items()
        )
        for member, weight in self._ring.items():
            self._credit[member] += rounds * quantum * weight

    def charge(self, member: M, cost: float) -> None:
        """Charge a member for a batch."""
        self._credit[member] -= cost
        if self._credit[member] <= 0:
            self._ring.move_to_end(member)

    def lose(self, member: M) -> None:
        """Remove a member with nothing to send; its credit is lost."""
        del self._ring[member]
        if self._credit[member] > 0:
            del self._credit[member]

    def forget(self, member: M) -> None:
        """Remove a member with its credit and debt."""
        self._ring.pop(member, None)
        self._credit.pop(member, None)
