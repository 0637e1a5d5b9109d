"""Ranges of offsets: sorted, half open, without overlaps."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Ranges:
    """A set of offsets, kept as ranges."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        """The number of offsets."""
        for first, end in ranges:
            self.add(first, end)

    def add(self, first: int, end: int) -> tuple[int, int]:
        """Add the offsets from `first` up to `end`; return the range that now contains them."""
        firsts, ends = self._firsts, self._ends
        low = bisect_right(firsts, first)
        if low and ends[low - 1] >= first:
            low -= 1
        high = bisect_right(firsts, end)
        if low < high:
            first, end = min(first, firsts[low]), max(end, ends[high - 1])
            self.total -= sum(ends[low:high]) - sum(firsts[low:high])
        firsts[low:high], ends[low:high] = [first], [end]
        self.total += end - first
        return first, end

    def end_of(self, offset: int) -> int:
        """Return the end of the range that contains `offset`; `offset` itself if none does."""
        at = bisect_right(self._firsts, offset)
        return max(offset, self._ends[at - 1]) if at else offset

    def next_after(self, offset: int) -> int | None:
        """Return the first offset of the first range that begins after `offset`."""
        at = bisect_right(self._firsts, offset)
        return self._firsts[at] if at < len(self._firsts) else None

    def __contains__(self, offset: int) -> bool:
        return self.end_of(offset) > offset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._ends, strict=True)


def ranges_of(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of ascending offsets."""
    first = end = None
    for offset in offsets:
        if offset != end:
            if first is not None and end is not None:
                yield first, end
            first = offset
        end = offset + 1
    if first is not None and end is not None:
        yield first, end
