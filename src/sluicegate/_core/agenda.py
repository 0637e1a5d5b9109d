"""A priority queue ordered by time, for times that change often. Pure.

A heap whose entries may be stale. The recorded time of an entry is never later than its actual
time, which is read when the entry reaches the front. So a time that becomes later costs nothing
until then, and a time that becomes earlier is recorded again.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

E = TypeVar("E", bound="Hashable")

_SMALL = 64
"""Number of stale entries that are tolerated before the heap is rebuilt."""


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
