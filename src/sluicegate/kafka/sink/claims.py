"""The partitions of a source whose offsets a sink commits with its records, in transactions.

1. Each claim has its own transactional id, the same in every process, so the next owner's claim
   fences the previous owner.
2. The offsets are those of the consumer group. They are read after the fencing, when no earlier
   transaction can change them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.errors import PositionLost
from ..._core.transaction import Attempt, has_ended
from ..client.transactional import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from ..._core.batch import Batch
    from ..._core.positions import PositionUnit
    from ..._core.sink import Capabilities, WriteResult
    from ..._core.source import Position, TopicPartition
    from ..client.options import ProducerOptions

T = TypeVar("T")

PREFIX = "sluicegate"


def transactional_id_of(group: str, partition: TopicPartition) -> str:
    """The transactional id of a claim. It is unambiguous, since topic names contain no colon."""
    return f"{PREFIX}:{group}:{partition.topic}:{partition.partition}"


class KafkaClaims:
    """The producers of claimed partitions, which share the connections of one client."""

    def __init__(self, options: ProducerOptions, client: Any) -> None:
        self._options = options
        self._client = client
        self._producers: dict[tuple[str, TopicPartition], TransactionalProducer] = {}

    async def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Fence earlier owners of these partitions; return the group's offsets."""
        claimed = sorted(partitions)
        if not claimed:
            return {}
        made = [
            TransactionalProducer(
                self._options, self._client, transactional_id_of(group, each), group
            )
            for each in claimed
        ]
        await _all(each.fence() for each in made)
        found = await made[0].positions(claimed)
        for partition, producer in zip(claimed, made, strict=True):
            self._producers[group, partition] = producer
        return found

    async def read(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """The group's offsets, after aborting the open transactions of this owner."""
        owned = [self._of(group, each) for each in partitions]
        await _all(each.abort() for each in owned)
        return await owned[0].positions(partitions) if owned else {}

    async def store(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Commit offsets without records, each in a transaction of its claim; return the partitions
        whose offsets are stored.
        """
        stored = await _all(self._store(group, each, at) for each, at in positions.items())
        return [each for each, is_stored in zip(positions, stored, strict=True) if is_stored]

    async def _store(self, group: str, partition: TopicPartition, position: Position) -> bool:
        try:
            producer = self._of(group, partition)
            await producer.abort()
            await producer.commit({partition: position})
        except PositionLost:
            return False
        return True

    async def producer(self, unit: PositionUnit) -> TransactionalProducer:
        """The producer of a unit's partition, without an open transaction."""
        producer = self._of(unit.group, unit.partition)
        await producer.abort()
        return producer

    def stored_offset(
        self, group: str, partition: TopicPartition, of: TopicPartition
    ) -> int | None:
        """The offset of the last batch that a claim has stored in a partition, if known."""
        return self._of(group, partition).stored_offset(of)

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget claimed partitions."""
        for each in partitions:
            self._producers.pop((group, each), None)

    def _of(self, group: str, partition: TopicPartition) -> TransactionalProducer:
        found = self._producers.get((group, partition))
        if found is None:
            raise PositionLost(f"{partition} of the group {group!r} is not claimed")
        return found


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all of these concurrently, until the last has ended; then raise the first error."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for each in answers:
        if isinstance(each, BaseException):
            raise each
    return [each for each in answers if not isinstance(each, BaseException)]


class KafkaTransaction(Attempt):
    """The transaction from `KafkaSink.transaction(unit)`."""

    def __init__(
        self,
        unit: PositionUnit,
        capabilities: Capabilities,
        write: Callable[[Batch[Any]], Awaitable[WriteResult | None]],
    ) -> None:
        super().__init__(unit)
        self.capabilities = capabilities
        self._write = write
        self._is_over = False

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch` as a record in this transaction, like `KafkaSink.write`.

        Raises `TransactionLost` if the transaction has ended.
        """
        if self._is_over:
            raise has_ended(self.unit)
        return await self._write(batch)

    def end(self) -> None:
        """Refuse further writes."""
        self._is_over = True
