"""Whose turn it is, by deficit round robin, and who is due. Pure.

1. A member at the front without credit gets `quantum` times its weight. It sends while it has
   credit, is charged for each batch, and then goes to the back. So while two members have items to
   send, the ratio of their sent amounts is that of their weights, up to one turn of each.
2. Credit is not saved: a member with nothing to send loses it. A debt stays until `forget`.

M. Shreedhar, G. Varghese: Efficient Fair Queuing Using Deficit Round Robin, SIGCOMM 1995.

An agenda is a priority queue for times that change often: a heap whose entries may be stale. The
recorded time of an entry is never later than its actual time, which is read when the entry reaches
the front. So a time that becomes later costs nothing until then, and a time that becomes earlier is
recorded again.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


M = TypeVar("M", bound="Hashable")

E = TypeVar("E", bound="Hashable")

_SMALL = 64
"""Number of stale entries that are tolerated before the heap is rebuilt."""


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


class Agenda(Generic[E]):
    """Priority queue; `time_of` returns an entry's current time, or `None` if it has none."""

    def __init__(self, time_of: Callable[[E], float | None]) -> None:
        self._time_of = time_of
        self._noted: dict[E, float] = {}
        self._heap: list[tuple[float, int, E]] = []
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)  # stale entries included

    def note(self, one: E, time: float) -> None:
        """Record a time of `one`; ignored unless it is earlier than the recorded time."""
        if time < self._noted.get(one, float("inf")):
            self._noted[one] = time
            if len(self._heap) > 2 * len(self._noted) + _SMALL:
                self._heap = [(time, next(self._count), one) for one, time in self._noted.items()]
                heapq.heapify(self._heap)
            else:
                heapq.heappush(self._heap, (time, next(self._count), one))

    def drop(self, one: E) -> None:
        """Remove the recorded time of `one`."""
        self._noted.pop(one, None)

    def first(self) -> tuple[float, E] | None:
        """Return the earliest time and its entry; among equal times, the entry recorded first."""
        while self._heap:
            noted, _, one = self._heap[0]
            if self._noted.get(one) != noted:
                heapq.heappop(self._heap)
                continue
            time = self._time_of(one)
            if time is not None and time <= noted:
                return noted, one
            heapq.heappop(self._heap)
            del self._noted[one]
            if time is not None:
                self.note(one, time)
        return None
