"""The part of a memory source that outlives its consumers: the state of a broker for one group.

1. The offsets of a partition increase. Offsets without a record are holes: between records, before
   the first one, or after the last one.
2. Positions of any member are stored: brokers accept the late commit of a former owner, so the
   source must not send one.
3. A partition has at most one owner. A new one is offered to the members in the order in which they
   joined, until one takes it.
4. A claim gets the records in order, once each, from the stored position on. Records to be
   redelivered come first; their offsets are below all others. After the last record the claim
   reaches the partition's end, past any holes, and reports this once.
5. A record is *held* from its delivery until a stored position has passed it. Each held record has
   a deadline, which is renewed when the record is extended or redelivered. All waits have the same
   length, so the records of a partition become overdue in the order of their last renewal.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.clock import Signal
from ..._core.errors import PermanentError
from ..._core.source import Position, Record, TopicPartition, UndecodableRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ..._core.source import SourceRecord


METADATA_LIMIT = 4096
"""Default limit for the metadata of a position, in characters, as in Apache Kafka."""

_offset = attrgetter("offset")


class MemoryLog:
    """Partitions of records, and the stored positions of one consumer group.

    Args:
        records: the first records.
        partitions: partitions that exist without records.
        group: the name of the consumer group.

    Records may be added while consumers run; a waiting source delivers them immediately.
    """

    def __init__(
        self,
        records: Iterable[Record] = (),
        *,
        partitions: Iterable[TopicPartition] = (),
        group: str = "memory",
    ) -> None:
        self.records: dict[TopicPartition, list[Record]] = {}
        self.positions: dict[TopicPartition, Position] = {}
        """The stored positions."""
        self.commits: list[tuple[TopicPartition, Position]] = []
        """All positions that were ever stored, in order."""
        self.news = Signal()
        """Fires when there are new records to deliver."""
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

        With `undecodable`, the source delivers it as a record that could not be decoded because of
        this error.
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
            if len(position.metadata) > METADATA_LIMIT:
                refused.append(f"{partition} with {len(position.metadata)} characters")
                continue
            self.positions[partition] = position
            self.commits.append((partition, position))
        if refused:
            raise PermanentError(
                f"metadata of {', '.join(refused)}; the limit is {METADATA_LIMIT} characters"
            )

    def __repr__(self) -> str:
        count = sum(map(len, self.records.values()))
        return f"MemoryLog({count} records in {len(self.records)} partitions)"


class Group:
    """The members, each with a callback for new partitions, and the owners of partitions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._members: dict[object, Callable[[TopicPartition], None]] = {}
        self._owners: dict[TopicPartition, object] = {}

    def join(self, member: object, offered: Callable[[TopicPartition], None]) -> None:
        """Add a member without partitions; `offered` is called for each new partition."""
        self._members[member] = offered

    def leave(self, member: object) -> None:
        """Remove a member; its partitions become free."""
        self._members.pop(member, None)
        self._owners = {tp: owner for tp, owner in self._owners.items() if owner is not member}

    def offer(self, partition: TopicPartition) -> None:
        """Offer a partition to the members until one takes it."""
        for offered in tuple(self._members.values()):
            if partition not in self._owners:
                offered(partition)

    def own(self, partitions: Collection[TopicPartition], member: object) -> None:
        """Assign partitions to a member.

        If one has an owner, raises `ConfigError` and assigns none.
        """
        for partition in partitions:
            owner = self._owners.get(partition)
            if owner is not None:
                rule = f"must be free, and {owner!r} owns it: revoke or lose it there"
                raise checks.bad("partitions", str(partition), rule)
        self._owners.update(dict.fromkeys(partitions, member))

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions from their owners."""
        for partition in partitions:
            self._owners.pop(partition, None)

    def free(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions without an owner."""
        return [partition for partition in partitions if partition not in self._owners]


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


class AckDeadlines:
    """Redelivery deadlines of held records. Times are the clock's monotonic seconds.

    Args:
        wait: seconds that a delivered record may stay unsettled; infinite: there are no deadlines.
    """

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._held: dict[TopicPartition, dict[int, tuple[float, Record]]] = defaultdict(dict)

    def begin(self, records: Iterable[Record], now: float) -> None:
        """Set the deadlines of these records."""
        if self._wait == math.inf:
            return
        for record in records:
            held = self._held[TopicPartition(record.topic, record.partition)]
            held.pop(record.offset, None)  # the new deadline is later than all others
            held[record.offset] = now + self._wait, record

    def extend(self, records: Iterable[SourceRecord], now: float) -> None:
        """Renew the deadlines of these records if they are held."""
        for record in records:
            held = self._held.get(TopicPartition(record.topic, record.partition), {})
            entry = held.pop(record.offset, None)
            if entry is not None:
                held[record.offset] = now + self._wait, entry[1]

    def end(self, partition: TopicPartition, before: int) -> None:
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
