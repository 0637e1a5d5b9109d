"""The part of a memory source that outlives its consumers: records and stored positions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ..._core.source import Position, Record, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

METADATA_LIMIT = 4096
"""Characters of metadata that a position may have, as Apache Kafka's brokers allow."""


class MemoryLog:
    """Partitions of records, the positions of one group, and every commit in order."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: dict[TopicPartition, list[Record]] = defaultdict(list)
        self.positions: dict[TopicPartition, Position] = {}
        self.commits: list[tuple[TopicPartition, Position]] = []
        for record in records:
            self.append(record)

    def append(self, record: Record) -> None:
        """Append a record; offsets of a partition increase, with holes or without."""
        records = self.records[TopicPartition(record.topic, record.partition)]
        if records and record.offset <= records[-1].offset:
            raise ValueError(f"offset={record.offset}: must be above {records[-1].offset}")
        records.append(record)

    def start(self, partition: TopicPartition) -> Position:
        """The stored position, else the offset of the first record."""
        records = self.records[partition]
        return self.positions.get(partition, Position(records[0].offset if records else 0))

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions. Raises `ValueError` for metadata over the limit, and stores nothing."""
        for position in positions.values():
            if len(position.metadata) > METADATA_LIMIT:
                raise ValueError(f"metadata has {len(position.metadata)} characters")
        self.positions.update(positions)
        self.commits += positions.items()

    def end(self, partition: TopicPartition) -> int:
        """The offset after the last record."""
        records = self.records[partition]
        return records[-1].offset + 1 if records else self.start(partition).offset
