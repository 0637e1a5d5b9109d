"""Wall time and processor time of one stretch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter, process_time


class Clock(StrEnum):
    """The two times of a turn."""

    WALL = "wall"
    PROCESSOR = "processor"
    """Of this process, with all its threads."""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a turn, by either clock."""

    wall: float
    processor: float

    def by(self, clock: Clock) -> float:
        """The seconds by one of them."""
        return self.wall if clock is Clock.WALL else self.processor

    def __add__(self, other: Took) -> Took:
        return Took(self.wall + other.wall, self.processor + other.processor)


TimedTurn = Callable[[], Took]


class Stopwatch:
    """Runs from its construction on."""

    def __init__(self) -> None:
        self._wall = perf_counter()
        self._processor = process_time()

    def read(self) -> Took:
        """The time until now."""
        processor = process_time() - self._processor
        return Took(perf_counter() - self._wall, processor)
