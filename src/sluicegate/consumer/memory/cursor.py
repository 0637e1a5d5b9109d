"""The delivery state of one claim. No clock, no task, no I/O.

1. Records are delivered in order, once each, from the stored position on.
2. Records to be redelivered come first. Their offsets are below all others.
3. After the last record the cursor moves to the partition's end, past any holes, and reports this
   once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..._core.source import Record, TopicPartition
    from .log import MemoryLog


class Cursor:
    """The next records of a claim."""

    __slots__ = ("_again", "_log", "_partition", "_told", "at")

    def __init__(self, log: MemoryLog, partition: TopicPartition, start: int) -> None:
        self._log = log
        self._partition = partition
        self.at = start
        """All offsets before this one were delivered or have no record."""
        self._told = start
        self._again: dict[int, Record] = {}

    def take(self, most: int) -> tuple[Sequence[Record], int] | None:
        """Return the next records and the offset they reach; `None` if nothing is new."""
        if most <= 0:
            return None
        again = [self._again.pop(offset) for offset in sorted(self._again)[:most]]
        room = most - len(again)
        new = self._log.read(self._partition, self.at, room)
        if new:
            self.at = new[-1].offset + 1
        if len(new) < room:
            self.at = max(self.at, self._log.end(self._partition))
        if not (again or new) and self.at == self._told:
            return None
        self._told = self.at
        return [*again, *new], self.at

    def repeat(self, records: Iterable[Record]) -> None:
        """Redeliver these records; records that have not been delivered yet keep their order."""
        self._again.update({record.offset: record for record in records if record.offset < self.at})

    def is_over(self) -> bool:
        """Whether everything has been delivered."""
        return not self._again and not self._log.read(self._partition, self.at, 1)
