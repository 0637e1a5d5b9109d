"""The history of an open source's partitions, across assignments and sessions."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..._core.source import Position, TopicPartition


MEMORY = 60.0
"""Seconds for which a loss is counted."""
MANY = 3
"""Number of losses that are not a coincidence."""


class History:
    """The partitions of the first assignment, the last stored positions, and recent losses."""

    def __init__(self) -> None:
        self._first: frozenset[TopicPartition] | None = None
        self._stored: dict[TopicPartition, int] = {}
        self._losses: deque[float] = deque(maxlen=MANY)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Record the partitions of the topics at the first assignment; later calls do nothing."""
        if self._first is None:
            self._first = frozenset(partitions)

    def has_appeared(self, partition: TopicPartition) -> bool:
        """Return whether a partition is newer than the first assignment."""
        return self._first is not None and partition not in self._first

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Record stored positions."""
        self._stored |= {partition: at.offset for partition, at in positions.items()}

    def forgotten(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return, of partitions without a stored position, the last known ones."""
        return {each: self._stored[each] for each in partitions if each in self._stored}

    def lose(self, now: float) -> None:
        """Record that all partitions were lost, without a revoke."""
        self._losses.append(now)

    def loses_often(self, now: float) -> bool:
        """Return whether there have been many recent losses."""
        return len(self._losses) == MANY and now - self._losses[0] < MEMORY
