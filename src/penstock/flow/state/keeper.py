"""What stores the state of partitions together with their positions, as `StatePositions` needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from ..._core.source import Position, TopicPartition
    from .changes import Stored, TakenChanges


class StateKeeper(Protocol):
    """The states and positions of one consumer group. All methods but `release` suspend."""

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether its positions are the group's own offsets; see `PositionStore`."""
        ...

    async def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Own these partitions from now on; return the positions of those that have one.

        A transaction of the owner before, which has not committed, fails from here on.
        """
        ...

    def pages(
        self, partition: TopicPartition
    ) -> AsyncGenerator[Sequence[tuple[str, Stored | None]]]:
        """The state of a claimed partition, a page at a time; the last value of a key counts.

        Raises `ConfigError` for a state that is not the one of the position.
        """
        ...

    async def store(self, partition: TopicPartition, taken: TakenChanges) -> None:
        """Store changes and the position behind them, in one transaction.

        Raises `PositionLost` if another owner has the partition. After any error `has_stored` has
        to be asked before the next call.
        """
        ...

    async def has_stored(self, partition: TopicPartition, taken: TakenChanges) -> bool:
        """Whether a call of `store` that raised has stored these all the same.

        Raises `PositionLost`. May return false for changes that are stored, if they may be stored
        again.
        """
        ...

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions."""
