"""Deadlines for settling delivered records. No clock, no task, no I/O.

A record is *held* from its delivery until a stored position has passed it. Each held record has a
deadline, which is renewed when the record is extended or redelivered. All waits have the same
length, so the records of a partition become overdue in the order of their last renewal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from ..._core.source import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..._core.source import Record, SourceRecord


class AckDeadlines:
    """Redelivery deadlines of held records. Times are the clock's monotonic seconds.

    Args:
        wait: seconds that a delivered record may stay unsettled; infinite: there are no deadlines.
    """

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._held: dict[TopicPartition, dict[int, tuple[float, Record]]] = defaultdict(dict)

    def delivered(self, records: Iterable[Record], now: float) -> None:
        """Set the deadlines of these records."""
        if self._wait == math.inf:
            return
        for record in records:
            held = self._held[TopicPartition(record.topic, record.partition)]
            held.pop(record.offset, None)  # the new deadline is later than all others
            held[record.offset] = now + self._wait, record

    def extended(self, records: Iterable[SourceRecord], now: float) -> None:
        """Renew the deadlines of these records if they are held."""
        for record in records:
            held = self._held.get(TopicPartition(record.topic, record.partition), {})
            entry = held.pop(record.offset, None)
            if entry is not None:
                held[record.offset] = now + self._wait, entry[1]

    def settled(self, partition: TopicPartition, before: int) -> None:
        """Remove the deadlines of the records before a stored position."""
        held = self._held.get(partition, {})
        for offset in [offset for offset in held if offset < before]:
            del held[offset]

    def forget(self, partition: TopicPartition) -> None:
        """Remove all deadlines of a claim that has ended."""
        self._held.pop(partition, None)

    def overdue(self, partition: TopicPartition, now: float) -> list[Record]:
        """Remove and return the overdue records of a partition."""
        held = self._held.get(partition, {})
        due = [record for until, record in held.values() if until <= now]
        for record in due:
            del held[record.offset]
        return due

    @property
    def next_due(self) -> float:
        """The earliest deadline; infinite if there is none."""
        firsts = [next(iter(held.values()))[0] for held in self._held.values() if held]
        return min(firsts, default=math.inf)
