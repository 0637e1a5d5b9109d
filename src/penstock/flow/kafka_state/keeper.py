"""States in a compacted topic of Kafka, with positions as the group's offsets.

1. A claim fences the previous owner by the transactional id of the partition. The state is read
   afterwards, up to the end of the committed records.
2. Changes, forwarded records, a mark and the group's offset form one transaction of Kafka.
3. After a failure the transaction is ended with certainty, and the group's offset is read: its
   metadata contains the number of the last transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..._core.batch import RowBatch
from ..._core.checks import bad
from ..._core.enlisted import transaction
from ..._core.errors import PositionLost
from ..._core.positions import PositionUnit
from ..._core.send import send
from ..._core.source import Position
from .topic import MARK_KEY, FoundState, StateMark, is_of_a_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
    from typing import Any

    from ..._core.source import TopicPartition
    from ...sinks.kafka.sink import KafkaSink
    from ..state.changes import Stored, TakenChanges
    from .topic import StateTopic

WRITE_SIZE = 5000
"""The most records in one write."""


class TopicEntry(NamedTuple):
    """A record of the state's own topic."""

    topic: str
    value: Stored | None
    key: str | bytes
    partition: int
    headers: None = None


class OwnedState:
    """An owned partition, and its last known transaction."""

    def __init__(self, position: Position | None) -> None:
        self.position = position
        self.number = 0

    def found(self, number: int) -> None:
        """Set the number of the last transaction."""
        self.number = number

    def moved(self, mark: StateMark) -> None:
        """Record a committed transaction."""
        self.position, self.number = Position(mark.position, mark.metadata), mark.number


class KafkaKeeper:
    """The states and positions of one consumer group: a `StateKeeper`."""

    keeps_group_offsets = True

    def __init__(self, group: str, topic: StateTopic, sink: KafkaSink, *, as_text: bool) -> None:
        self._group = group
        self._topic = topic
        self._sink = sink
        self._as_text = as_text
        self._owned: dict[TopicPartition, OwnedState] = {}

    async def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Fence the previous owners; return the group's offsets."""
        await self._topic.prepare(partitions)
        known = await self._sink.claim_positions(self._group, partitions)
        self._owned.update({each: OwnedState(known.get(each)) for each in partitions})
        return {each: _for_the_source(at) for each, at in known.items()}

    async def pages(
        self, partition: TopicPartition
    ) -> AsyncGenerator[Sequence[tuple[str, Stored | None]]]:
        """Yield the records of a partition.

        Raises `ConfigError` for a state of a different position.
        """
        owned = self._of(partition)
        mark: StateMark | None = None
        has_entries = False
        async for records in self._topic.pages(partition.partition):
            page: list[tuple[str, Stored | None]] = []
            try:
                for record in records:
                    if record.key == MARK_KEY:
                        mark = StateMark.decoded(record.value)
                    else:
                        page.append((record.key.decode(), self._stored(record.value)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                rule = (
                    "has records that were not written by a state; use a topic only for the state"
                )
                raise bad("topic", self._topic.name, rule) from error
            has_entries = has_entries or bool(page)
            yield page
        self._topic.check(FoundState(mark, has_entries, owned.position), self._group, partition)
        owned.found(0 if mark is None else mark.number)

    def _stored(self, value: bytes | None) -> Stored | None:
        return value if value is None or not self._as_text else value.decode()

    async def store(self, partition: TopicPartition, taken: TakenChanges) -> None:
        """Commit changes, forwarded records and the position.

        Raises `PositionLost`, and errors of the sink.
        """
        owned = self._of(partition)
        mark = StateMark(self._group, partition.topic, taken.offset, owned.number + 1)
        rows = self._rows(partition, taken, mark)
        unit = PositionUnit(self._group, partition, Position(mark.position, mark.metadata))
        async with transaction(self._sink, unit) as within:
            for at in range(0, len(rows), WRITE_SIZE):
                errors = await send(within, RowBatch(rows[at : at + WRITE_SIZE]))
                if errors:
                    raise errors[min(errors)]
        owned.moved(mark)

    def _rows(self, partition: TopicPartition, taken: TakenChanges, mark: StateMark) -> list[Any]:
        name, number = self._topic.name, partition.partition
        rows: list[Any] = [
            TopicEntry(name, value, key, number) for key, value in taken.changes.items()
        ]
        rows += taken.forwarded
        rows.append(TopicEntry(name, mark.encoded(), MARK_KEY, number))
        return rows

    async def has_stored(self, partition: TopicPartition, taken: TakenChanges) -> bool:
        """Whether the group's offset is that of the next transaction. Raises `PositionLost`."""
        owned = self._of(partition)
        mark = StateMark(self._group, partition.topic, taken.offset, owned.number + 1)
        known = await self._sink.read_positions(self._group, [partition])
        if known.get(partition) == Position(mark.position, mark.metadata):
            owned.moved(mark)
            return True
        if known.get(partition) != owned.position:
            raise PositionLost(f"the group's offset of {partition} was changed by other means")
        return False

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions."""
        for each in partitions:
            self._owned.pop(each, None)
        self._sink.release_positions(self._group, partitions)

    def _of(self, partition: TopicPartition) -> OwnedState:
        owned = self._owned.get(partition)
        if owned is None:
            raise PositionLost(f"{partition} is no longer owned")
        return owned


def _for_the_source(position: Position) -> Position:
    """Return a position without the metadata of a state, which is not a map of offsets."""
    return Position(position.offset) if is_of_a_state(position.metadata) else position
