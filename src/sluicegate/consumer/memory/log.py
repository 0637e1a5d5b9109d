"""The part of a memory source that outlives its consumers: the state of a broker for one group.

1. The offsets of a partition increase. Offsets without a record are holes: between records, before
   the first one, or after the last one.
2. Positions of any member are stored: brokers accept the late commit of a former owner, so the
   source must not send one.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.clock import Signal
from ..._core.errors import PermanentError
from ..._core.source import Position, Record, TopicPartition, UndecodableRecord
from .group import Group

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

METADATA_LIMIT = 4096
"""Default limit for the metadata of a position, in characters, as in Apache Kafka."""

_offset = attrgetter("offset")


class MemoryLog:
    """Partitions of records, and the stored positions of one consumer group.

    Args:
        records: the first records.
        partitions: partitions that exist without records.
        metadata_limit: the most characters of metadata that a stored position may have.
        group: the name of the consumer group.

    Records may be added while consumers run; a waiting source delivers them at once.
    """

    def __init__(
        self,
        records: Iterable[Record] = (),
        *,
        partitions: Iterable[TopicPartition] = (),
        metadata_limit: int = METADATA_LIMIT,
        group: str = "memory",
    ) -> None:
        self.records: dict[TopicPartition, list[Record]] = {}
        self.positions: dict[TopicPartition, Position] = {}
        """The stored positions."""
        self.commits: list[tuple[TopicPartition, Position]] = []
        """All positions that were ever stored, in order."""
        self.news = Signal()
        """Fires when there are new records to deliver."""
        self._limit = checks.count("metadata_limit", metadata_limit, least=0)
        self._ends: dict[TopicPartition, int] = {}
        self.group = Group(checks.text("group", group))
        """The consumers of this log, and the partitions that each owns."""
        for partition in partitions:
            self.add_partition(partition)
        for record in records:
            self.append(record)

    # -- records -----------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: object,
        *,
        key: object = None,
        partition: int = 0,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp: int = 0,
        undecodable: Exception | None = None,
    ) -> Record:
        """Append a record at the next offset; return the record.

        With `undecodable`, it is a record that a source cannot decode because of this error.
        """
        end = self.end(TopicPartition(topic, partition))
        read = (topic, partition, end, key, value, headers, timestamp)
        record = (
            Record(*read) if undecodable is None else UndecodableRecord(*read, error=undecodable)
        )
        self.append(record)
        return record

    def append(self, record: Record) -> None:
        """Append a record with a given offset, which may leave a hole before it.

        Raises `ConfigError` for an offset below the partition's end.
        """
        partition = TopicPartition(record.topic, record.partition)
        end = self._ends.get(partition, 0)
        checks.count("offset", record.offset, least=end)
        self.add_partition(partition)
        self.records[partition].append(record)
        self._ends[partition] = record.offset + 1
        self.news.fire()

    def skip(self, partition: TopicPartition, count: int = 1) -> None:
        """Skip the next offsets, as the markers of transactions do."""
        checks.count("count", count)
        self.add_partition(partition)
        self._ends[partition] += count
        self.news.fire()

    def remove(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        """Remove these records, as compaction and retention do."""
        kept = [record for record in self.records[partition] if record.offset not in offsets]
        self.records[partition] = kept
        self.news.fire()

    def add_partition(self, partition: TopicPartition) -> None:
        """Add an empty partition; a member that accepts new partitions claims it."""
        if partition in self._ends:
            return
        self.records[partition] = []
        self._ends[partition] = 0
        self.group.offer(partition)

    def read(self, partition: TopicPartition, offset: int, most: int) -> Sequence[Record]:
        """Return up to `most` records from an offset on."""
        records = self.records[partition]
        at = bisect_left(records, offset, key=_offset)
        return records[at : at + most]

    def end(self, partition: TopicPartition) -> int:
        """Return the offset after the last record and the holes that follow it."""
        return self._ends.get(partition, 0)

    # -- positions ---------------------------------------------------------------------------------

    def start(self, partition: TopicPartition) -> Position:
        """Return the stored position, or else the offset of the first record."""
        stored = self.positions.get(partition)
        if stored is not None:
            return stored
        records = self.records[partition]
        return Position(records[0].offset if records else self.end(partition))

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions.

        Raises `PermanentError` for metadata over the limit, after storing the other positions.
        """
        refused: list[str] = []
        for partition, position in positions.items():
            if len(position.metadata) > self._limit:
                refused.append(f"{partition} with {len(position.metadata)} characters")
                continue
            self.positions[partition] = position
            self.commits.append((partition, position))
        if refused:
            raise PermanentError(
                f"metadata of {', '.join(refused)}; the limit is {self._limit} characters"
            )

    def __repr__(self) -> str:
        count = sum(map(len, self.records.values()))
        return f"MemoryLog({count} records in {len(self.records)} partitions)"
