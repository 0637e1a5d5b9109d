"""Rows that commit together with the position of the source's partition that they were made of.

1. A `PositionUnit` names a group, a partition and the position after the rows. The destination
   stores the position in the transaction of the rows, so that a restart continues behind them.
2. `claim_positions` begins the ownership of a partition and ends that of the owner before: a
   transaction of the earlier owner that has not committed raises `PositionLost` at its end.
3. A destination remembers the position of each partition that it has claimed, and commits the next
   one only if the stored position is still that one, and the ownership still its own.
4. After an unknown outcome, `read_positions` tells where a partition stands.
5. One open sink serves one flow: the ownership belongs to the sink.
6. A source in the same database settles the records of a unit itself, by a `UnitMove` that runs in
   the transaction in place of a stored position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from . import checks
from .checks import bad
from .public import publish
from .sink import Sink, inner_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractAsyncContextManager

    from .source import Position, SourceClaim, TopicPartition


class UnitMove(Protocol):
    """The last step of a transaction: it moves the position of its unit, on a connection of the
    destination's client. Methods suspend but for `committed`, and raise errors of the client.
    """

    @property
    def keeper(self) -> str:
        """What is moved, for errors: its kind and its name, as `the positions "p"`."""
        ...

    async def move(self, connection: Any) -> None:
        """Move it. Raises `PositionLost` if it has another owner, or was moved before."""
        ...

    async def is_moved(self, connection: Any) -> bool:
        """Whether it was moved, as another connection tells after a lost answer."""
        ...

    def committed(self) -> None:
        """Note that it is moved."""


@dataclass(frozen=True, slots=True)
class PositionUnit:
    """Rows that commit together with a source's position. Raises `ConfigError` for a bad value."""

    group: str
    """The consumer group of the source."""
    partition: TopicPartition
    position: Position
    """The position after these rows."""
    own_move: UnitMove | None = None
    """Moves it in place of a position that the destination stores."""

    def __post_init__(self) -> None:
        checks.text("group", self.group)
        checks.count("offset", self.position.offset, least=0)

    @property
    def name(self) -> str:
        """`group:topic/partition:offset`, for logs and errors."""
        return f"{self.group}:{self.partition}:{self.position.offset}"


@runtime_checkable
class KeepsPositions(Protocol):
    """A destination that commits rows together with positions of a source.

    Its sink is open. Methods suspend and raise errors of the destination, but for
    `release_positions`.
    """

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether its positions are the consumer group's own offsets; see `PositionStore`."""
        ...

    async def claim_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Own these partitions from now on; return the positions of those that have one.

        Suspends while a transaction of the owner before commits. Raises `ConfigError` where the
        stored positions do not belong to the rows of this destination.
        """
        ...

    async def read_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """The positions of claimed partitions, after the end of any transaction of this owner;
        without those of partitions that have none.

        Raises `PositionLost` for a partition that has another owner.
        """
        ...

    def transaction(self, unit: PositionUnit | None) -> AbstractAsyncContextManager[Sink[Any]]:
        """A transaction that stores the unit's position last; see `penstock.transaction`.

        Leaving it raises `PositionLost` where the partition has another owner, or its position was
        changed; nothing was applied then.
        """
        ...

    async def store_positions(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions of claimed partitions without rows; return those that are stored.

        The others have another owner, or their position was changed.
        """
        ...

    def release_positions(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget claimed partitions; another owner takes them over by a claim. Does not suspend."""


@runtime_checkable
class SettlesInTransaction(Protocol):
    """A source whose records can be settled in a transaction of its own database."""

    @property
    def group(self) -> str:
        """The group that consumes, for the names of units."""
        ...

    @property
    def moves_in(self) -> str:
        """The kind of server that its moves run on, such as `PostgreSQL`."""
        ...

    def move_to(self, claim: SourceClaim, position: Position) -> UnitMove:
        """What settles the records of an open claim before this position.

        Raises `PositionLost` for a claim that has ended.
        """
        ...

    async def settled(self, claim: SourceClaim) -> int:
        """The offset before which everything of an open claim is settled, asked of the server.

        Suspends. Raises `PositionLost` for a claim that has ended, and errors of the client.
        """
        ...


@runtime_checkable
class TakesMoves(Protocol):
    """A destination whose transactions take the moves of a source in the same database."""

    @property
    def takes_moves_of(self) -> str:
        """The kind of server, such as `PostgreSQL`."""
        ...


def destination_of(sink: object) -> object:
    """The innermost sink of a stack."""
    while (inner := inner_of(sink)) is not None:
        sink = inner
    return sink


def check_keeps_positions(destination: object) -> None:
    """Raise `ConfigError` for a destination that keeps no positions."""
    if not isinstance(destination, KeepsPositions):
        rule = "keeps no positions of a source, so rows and position cannot commit together"
        instead = "use PostgresSink or KafkaSink, or flow.pipe (at least once)"
        raise bad("sink", destination, f"{rule}; {instead}")


publish("penstock", PositionUnit, KeepsPositions)
