"""A queue of entries by due time. Pure: the caller passes the time."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import isnan
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

E = TypeVar("E")


class RetryHeap(Generic[E]):
    """Entries in the order of their due times; entries with the same due time keep their arrival
    order.

    Times are seconds of the caller's clock. Entries need neither an order nor a hash.
    """

    __slots__ = ("_arrivals", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, E]] = []
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[tuple[float, E]]:
        """Iterate over all entries with their due times, in order."""
        return ((due, entry) for due, _, entry in sorted(self._heap))

    def push(self, due: float, entry: E) -> None:
        """Add an entry. Raises `ValueError` for a time that is not a number."""
        if isnan(due):  # NaN is neither before nor after any time
            message = f"due={due}: must be a time"
            raise ValueError(message)
        heappush(self._heap, (due, next(self._arrivals), entry))

    @property
    def next_due(self) -> float | None:
        """The due time of the first entry; `None` if there is none."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[E]:
        """Remove and return the entries that are due at `now`, in order."""
        heap = self._heap
        due: list[E] = []
        while heap and heap[0][0] <= now:
            due.append(heappop(heap)[2])
        return due

    def remove_where(self, predicate: Callable[[E], bool]) -> list[E]:
        """Remove and return, in order, the entries for which `predicate` is true. Nothing changes
        if it raises.
        """
        kept: list[tuple[float, int, E]] = []
        removed: list[tuple[float, int, E]] = []
        for each in sorted(self._heap):
            (removed if predicate(each[2]) else kept).append(each)
        self._heap[:] = kept
        return [entry for _, _, entry in removed]
