"""How long delivered records may stay unsettled. No clock, no task, no I/O.

A record is *held* from its delivery until a stored position has passed it. The source waits for
each held record, and begins to wait again when the record is extended or delivered again. All waits
are equally long, so the records of a partition become overdue in the order of their last beginning.
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
    """When held records are due to be delivered again. Times are the clock's monotonic seconds.

    Args:
        wait: seconds that a delivered record may stay unsettled; infinite: any time, and nothing
            is remembered.
    """

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._held: dict[TopicPartition, dict[int, tuple[float, Record]]] = defaultdict(dict)

    def delivered(self, records: Iterable[Record], now: float) -> None:
        """Begin to wait for these records."""
        if self._wait == math.inf:
            return
        for record in records:
            held = self._held[TopicPartition(record.topic, record.partition)]
            held.pop(record.offset, None)  # the new deadline comes after all others
            held[record.offset] = now + self._wait, record

    def extended(self, records: Iterable[SourceRecord], now: float) -> None:
        """Begin again to wait for those of these records that are held."""
        for record in records:
            held = self._held.get(TopicPartition(record.topic, record.partition), {})
            entry = held.pop(record.offset, None)
            if entry is not None:
                held[record.offset] = now + self._wait, entry[1]

    def settled(self, partition: TopicPartition, before: int) -> None:
        """A position was stored: wait no longer for the records before it."""
        held = self._held.get(partition, {})
        for offset in [offset for offset in held if offset < before]:
            del held[offset]

    def forget(self, partition: TopicPartition) -> None:
        """A claim has ended: wait for none of its records."""
        self._held.pop(partition, None)

    def overdue(self, partition: TopicPartition, now: float) -> list[Record]:
        """Remove and return the records of a partition that are due."""
        held = self._held.get(partition, {})
        due = [record for until, record in held.values() if until <= now]
        for record in due:
            del held[record.offset]
        return due

    @property
    def next_due(self) -> float:
        """When the first record becomes due; infinite without one."""
        firsts = [next(iter(held.values()))[0] for held in self._held.values() if held]
        return min(firsts, default=math.inf)
