"""What an open source remembers of its partitions over its assignments and sessions."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..._core.source import Position, TopicPartition


MEMORY = 60.0
"""Seconds for which a loss counts."""
MANY = 3
"""Losses that are no accident."""


class History:
    """The partitions that were there at the first assignment, the last stored positions, and the
    losses of late.
    """

    def __init__(self) -> None:
        self._first: frozenset[TopicPartition] | None = None
        self._stored: dict[TopicPartition, int] = {}
        self._losses: deque[float] = deque(maxlen=MANY)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Note the partitions of the first assignment's topics; no effect a second time."""
        if self._first is None:
            self._first = frozenset(partitions)

    def has_appeared(self, partition: TopicPartition) -> bool:
        """Whether a partition is newer than the first assignment."""
        return self._first is not None and partition not in self._first

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Note stored positions."""
        self._stored |= {partition: at.offset for partition, at in positions.items()}

    def forgotten(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Of partitions without a stored position, those that had one, with the last one."""
        return {each: self._stored[each] for each in partitions if each in self._stored}

    def lose(self, now: float) -> None:
        """Note that all partitions have been lost, without a revoke."""
        self._losses.append(now)

    def loses_often(self, now: float) -> bool:
        """Whether there have been many losses of late."""
        return len(self._losses) == MANY and now - self._losses[0] < MEMORY
