"""The interface of `StatePositions` to the storage of states and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from ..._core.source import Position, TopicPartition
    from .changes import Stored, TakenChanges


class StateKeeper(Protocol):
    """The states and positions of one consumer group. All methods except `release` suspend."""

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether its positions are the group's own offsets; see `PositionStore`."""
        ...

    async def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take over these partitions; return their stored positions.

        An uncommitted transaction of the previous owner fails from now on.
        """
        ...

    def pages(
        self, partition: TopicPartition, entries: Mapping[str, Stored]
    ) -> AsyncGenerator[Sequence[tuple[str, Stored | None]]]:
        """Yield the state of a claimed partition, one page at a time. The last value of a key is
        valid. `entries` are those of the pages before.

        Raises `ConfigError` if the state does not belong to the position.
        """
        ...

    async def store(self, partition: TopicPartition, taken: TakenChanges) -> None:
        """Store changes and the position after them, in one transaction.

        Raises `PositionLost` if the partition has another owner. After any error, `has_stored` has
        to be called before the next call.
        """
        ...

    async def has_stored(self, partition: TopicPartition, taken: TakenChanges) -> bool:
        """Whether a failed call of `store` has stored these changes nevertheless.

        Raises `PositionLost`. May return false for stored changes if they may be stored again.
        """
        ...

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions."""
