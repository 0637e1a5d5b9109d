"""The progress of a unit over time: its start, and at most `MOST` marks of the rows done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 64


class Course:
    """The marks of one unit. Times are seconds since 1970 by this machine's clock."""

    def __init__(self) -> None:
        self.began_at = LOOP_CLOCK.wall_time()
        self._marks: list[tuple[float, int]] = []
        self._every = 1
        self._seen = 0

    def mark(self, rows: int) -> None:
        """Record the number of rows done so far."""
        self._seen += 1
        if self._seen % self._every:
            return
        self._marks.append((round(LOOP_CLOCK.wall_time(), 3), rows))
        if len(self._marks) > MOST:
            self._marks = self._marks[1::2]
            self._every *= 2

    def begin_again(self) -> None:
        """Discard all marks after a rollback."""
        self._marks, self._every, self._seen = [], 1, 0

    def marks(self, rows: int) -> tuple[tuple[float, int], ...]:
        """Return all marks, and one for the end with the number of rows."""
        return (*self._marks, (round(LOOP_CLOCK.wall_time(), 3), rows))


def rates(
    courses: Sequence[tuple[float, Sequence[tuple[float, int]]]], bins: int = 60
) -> tuple[float, list[float]]:
    """Compute the seconds per bin, and the rows per second of all units together in each bin.

    The bins begin with the first unit. Between two marks, rows are assumed to be evenly spaced.
    """
    moments = [moment for began, marks in courses for moment in (began, *(at for at, _ in marks))]
    if not moments or max(moments) <= min(moments):
        return 0.0, []
    first = min(moments)
    width = (max(moments) - first) / bins
    counts = [0.0] * bins
    for began, marks in courses:
        before, done = began, 0
        for at, rows in marks:
            _spread(counts, before - first, at - first, rows - done, width)
            before, done = at, rows
    return width, [count / width for count in counts]


def _spread(counts: list[float], start: float, end: float, rows: int, width: float) -> None:
    last = len(counts) - 1
    if end - start < width / 1000:
        counts[min(int(end / width), last)] += rows
        return
    for place in range(max(0, min(int(start / width), last)), min(int(end / width), last) + 1):
        inside = min(end, (place + 1) * width) - max(start, place * width)
        counts[place] += rows * max(inside, 0.0) / (end - start)
