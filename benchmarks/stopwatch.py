"""Wall time and processor time of one period."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter, process_time


class Clock(StrEnum):
    """The two times of a turn."""

    WALL = "wall"
    PROCESSOR = "processor"
    """The processor time of this process, with all its threads."""


@dataclass(frozen=True, slots=True)
class Took:
    """The seconds of a turn, by either clock."""

    wall: float
    processor: float

    def by(self, clock: Clock) -> float:
        """Return the seconds by one of the clocks."""
        return self.wall if clock is Clock.WALL else self.processor

    def __add__(self, other: Took) -> Took:
        return Took(self.wall + other.wall, self.processor + other.processor)


TimedTurn = Callable[[], Took]


class Stopwatch:
    """A stopwatch that starts at its construction."""

    def __init__(self) -> None:
        self._wall = perf_counter()
        self._processor = process_time()

    def read(self) -> Took:
        """Return the time so far."""
        processor = process_time() - self._processor
        return Took(perf_counter() - self._wall, processor)
