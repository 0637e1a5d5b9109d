"""States in a compacted Kafka topic, with positions as the group's offsets.

1. A claim fences the previous owner by the transactional id of the partition. The state is read
   afterwards, up to the end of the committed records.
2. Changes, forwarded records, a mark and the group's offset form one transaction of Kafka. It is
   aborted if its records are stored before the previous mark: the topic was recreated or truncated.
3. After a failure the transaction is ended with certainty, and the group's offset is read: its
   metadata contains the number of the last transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..._core.batch import RowBatch
from ..._core.checks import bad
from ..._core.errors import ConfigError, PositionLost
from ..._core.positions import PositionUnit
from ..._core.send import send
from ..._core.source import Position, TopicPartition
from ..._core.transaction import transaction
from ...flow.state.changes import StateMark, for_the_source
from .topic import MARKS, StateContent, content_of, mark_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
    from typing import Any

    from ...flow.state.changes import Stored, TakenChanges
    from ..sink.sink import KafkaSink
    from .topic import StateTopic

NOTHING = -1
"""An offset before all others."""
WRITE_SIZE = 5000
"""Maximum number of records in one write."""


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
        self.content = StateContent()
        self.offset = NOTHING
        """The offset of its last known record in the topic of the state."""

    def restore(self, number: int, content: StateContent, offset: int) -> None:
        """Set the last transaction, the content after it, and the offset of the last record."""
        self.number, self.content, self.offset = number, content, offset

    def advance(self, mark: StateMark, content: StateContent) -> None:
        """Record a committed transaction."""
        self.position, self.number = Position(mark.position, mark.metadata), mark.number
        self.content = content

    def reach(self, offset: int) -> None:
        """Record the offset of a stored record."""
        self.offset = offset


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
        return {each: for_the_source(at) for each, at in known.items()}

    async def pages(
        self, partition: TopicPartition, entries: Mapping[str, Stored]
    ) -> AsyncGenerator[Sequence[tuple[str, Stored | None]]]:
        """Yield the records of a partition.

        Raises `ConfigError` for a state of a different position, and for a topic with too few
        partitions.
        """
        owned = self._of(partition)
        await self._topic.check_place(partition)
        mark = other = None
        own, offset = mark_key(self._group, partition.topic), NOTHING
        async for records in self._topic.pages(partition.partition):
            page: list[tuple[str, Stored | None]] = []
            try:
                for record in records:
                    if record.key == own:
                        mark = StateMark.decoded(record.value, "topic", self._topic.name)
                    elif record.key.startswith(MARKS):
                        other = StateMark.decoded(record.value, "topic", self._topic.name)
                    else:
                        page.append((record.key.decode(), self._as_stored(record.value)))
            except ConfigError:
                raise
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                rule = (
                    "has records that were not written by a state; use a topic only for the state"
                )
                raise bad("topic", self._topic.name, rule) from error
            offset = records[-1].offset
            yield page
        content = await content_of(entries)
        self._topic.check(other or mark, content, owned.position, self._group, partition)
        owned.restore(0 if mark is None else mark.number, content, offset)

    def _as_stored(self, value: bytes | None) -> Stored | None:
        return value if value is None or not self._as_text else value.decode()

    async def store(self, partition: TopicPartition, taken: TakenChanges) -> None:
        """Commit changes, forwarded records and the position.

        Raises `PositionLost`, and errors of the sink.
        """
        owned = self._of(partition)
        mark, content = self._next(owned, partition, taken)
        rows = self._rows(partition, taken, mark)
        unit = PositionUnit(self._group, partition, Position(mark.position, mark.metadata))
        async with transaction(self._sink, unit) as within:
            for at in range(0, len(rows), WRITE_SIZE):
                errors = await send(within, RowBatch(rows[at : at + WRITE_SIZE]))
                if errors:
                    raise errors[min(errors)]
            self._check_end(partition, owned)
        owned.advance(mark, content)

    def _next(
        self, owned: OwnedState, partition: TopicPartition, taken: TakenChanges
    ) -> tuple[StateMark, StateContent]:
        """Return the mark of the next transaction, and the content after it."""
        content = owned.content.after(taken.replaced, taken.changes)
        number = owned.number + 1
        mark = StateMark(self._group, partition.topic, taken.offset, number, str(content))
        return mark, content

    def _check_end(self, partition: TopicPartition, owned: OwnedState) -> None:
        """Note the offset at which this transaction has written its mark: the new end of the known
        records. Raises `PositionLost` if it is not behind them.
        """
        topic = self._topic.name
        offset = self._sink.stored_offset(
            self._group, partition, TopicPartition(topic, partition.partition)
        )
        if offset is None:  # unknown, after a repeated request
            return
        if offset <= owned.offset:
            told = f"its records end before the offset {owned.offset}, which was stored earlier"
            raise PositionLost(f"the topic {topic!r} was recreated or has lost records: {told}")
        owned.reach(offset)

    def _rows(self, partition: TopicPartition, taken: TakenChanges, mark: StateMark) -> list[Any]:
        name, number = self._topic.name, partition.partition
        rows: list[Any] = [
            TopicEntry(name, value, key, number) for key, value in taken.changes.items()
        ]
        rows += taken.forwarded
        rows.append(TopicEntry(name, mark.encoded(), mark_key(mark.group, mark.topic), number))
        return rows

    async def has_stored(self, partition: TopicPartition, taken: TakenChanges) -> bool:
        """Whether the group's offset is that of the next transaction.

        Raises `PositionLost`, and the reason if the topic is the cause.
        """
        owned = self._of(partition)
        mark, content = self._next(owned, partition, taken)
        known = await self._sink.read_positions(self._group, [partition])
        if known.get(partition) == Position(mark.position, mark.metadata):
            owned.advance(mark, content)
            return True
        if known.get(partition) != owned.position:
            raise PositionLost(f"the group's offset of {partition} was changed by other means")
        await self._topic.examine_used()
        return False

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions."""
        for each in partitions:
            self._owned.pop(each, None)
        self._sink.release_positions(self._group, partitions)

    def _of(self, partition: TopicPartition) -> OwnedState:
        owned = self._owned.get(partition)
        if owned is None:
            raise PositionLost(f"{partition} is no longer owned")
        return owned
