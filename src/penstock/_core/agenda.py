"""A priority queue ordered by time, for times that change often. Pure.

A heap of entries that may be stale. An entry's noted time is never after its true time, which is
read when the entry reaches the front. So a time that moves later costs nothing until then, and one
that moves earlier is noted again.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

E = TypeVar("E", bound="Hashable")

_SMALL = 64
"""Stale entries that are not worth clearing away."""


class Agenda(Generic[E]):
    """Priority queue; `time_of` gives an entry's current time, `None` if it has none any more."""

    def __init__(self, time_of: Callable[[E], float | None]) -> None:
        self._time_of = time_of
        self._noted: dict[E, float] = {}
        self._heap: list[tuple[float, int, E]] = []
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)  # stale entries included

    def note(self, one: E, time: float) -> None:
        """Note a time, or an earlier one than before."""
        if time < self._noted.get(one, float("inf")):
            self._noted[one] = time
            if len(self._heap) > 2 * len(self._noted) + _SMALL:
                self._heap = [(time, next(self._count), one) for one, time in self._noted.items()]
                heapq.heapify(self._heap)
            else:
                heapq.heappush(self._heap, (time, next(self._count), one))

    def drop(self, one: E) -> None:
        """Forget the time of `one` until it is noted again."""
        self._noted.pop(one, None)

    def first(self) -> tuple[float, E] | None:
        """The earliest time and its entry; of equal times, the one noted first."""
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
