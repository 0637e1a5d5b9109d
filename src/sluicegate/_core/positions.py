"""Rows that commit together with the position of their source partition.

1. A `PositionUnit` names a group, a partition and the position after the rows. The destination
   stores the position in the transaction of the rows, so that a restart continues after them.
2. `claim_positions` begins the ownership of a partition and ends that of the previous owner: a
   transaction of the previous owner that has not committed raises `PositionLost` when it ends.
3. A destination keeps the position of each claimed partition in memory, and commits the next one
   only if the stored position is unchanged and it still owns the partition.
4. After an unknown outcome, `read_positions` returns the stored positions.
5. One open sink serves one flow: the ownership belongs to the sink.
6. A source in the same database can settle the records of a unit itself: a `UnitMove` runs in the
   transaction instead of storing a position.

The rows may also be written by the user's handler:

1. The items of such a destination are *effects*: calls of a handler with the open connection.
2. A transaction runs them in order and stops at the first failure. It records the error in the
   failed effect, and the write fails with that error.
3. An effect may leave the transaction unusable without failing: for example, a handler that ignores
   a database error. If a later effect or the commit detects that, `CauseUnclear` is raised: run the
   effects again with `is_checked`, so that the destination checks the transaction after each one.
4. An error not caused by an effect is raised: nothing was applied, and no effect has failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from . import checks
from .checks import bad
from .errors import PermanentError, TransientError
from .sink import Sink, inner_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractAsyncContextManager

    from .source import Position, SourceClaim, TopicPartition


class UnitMove(Protocol):
    """The last step of a transaction: moves the position of its unit.

    It uses a connection of the destination's client. All methods except `committed` suspend, and
    raise client errors.
    """

    @property
    def keeper(self) -> str:
        """The kind and name of the moved position, for errors: `the positions "p"`."""
        ...

    async def move(self, connection: Any) -> None:
        """Move the position. Raises `PositionLost` if it has another owner or was moved before."""
        ...

    async def is_moved(self, connection: Any) -> bool:
        """Return whether it was moved, read on another connection after a lost response."""
        ...

    def committed(self) -> None:
        """Record that the position has been moved."""


@dataclass(frozen=True, slots=True)
class PositionUnit:
    """Rows that commit together with a source's position. Raises `ConfigError` for a bad value."""

    group: str
    """The consumer group of the source."""
    partition: TopicPartition
    position: Position
    """The position after these rows."""
    own_move: UnitMove | None = None
    """Moves the position, if the destination does not store it."""

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

    The sink is open. All methods except `release_positions` suspend and raise errors of the
    destination.
    """

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether its positions are the consumer group's own offsets; see `PositionStore`."""
        ...

    async def claim_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take ownership of these partitions; return the positions of those that have one.

        Suspends while a transaction of the previous owner commits. Raises `ConfigError` if the
        stored positions do not belong to the rows of this destination.
        """
        ...

    async def read_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Return the positions of those claimed partitions that have one.

        Reads after the end of any transaction of this owner.

        Raises `PositionLost` for a partition that has another owner.
        """
        ...

    def transaction(self, unit: PositionUnit | None) -> AbstractAsyncContextManager[Sink[Any]]:
        """Enter a transaction that stores the unit's position last; see `sluicegate.transaction`.

        Its end raises `PositionLost` if the partition has another owner or its position was
        changed; then nothing was applied.
        """
        ...

    async def store_positions(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions of claimed partitions without rows; return the stored ones.

        The others have another owner, or their position was changed.
        """
        ...

    def release_positions(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Release claimed partitions; another owner takes them over by a claim. Never suspends."""


@runtime_checkable
class SettlesInTransaction(Protocol):
    """A source whose records can be settled in a transaction in its database."""

    @property
    def group(self) -> str:
        """The consumer group, for the names of units."""
        ...

    @property
    def moves_in(self) -> str:
        """The kind of server on which its moves run, such as `PostgreSQL`."""
        ...

    def move_to(self, claim: SourceClaim, position: Position) -> UnitMove:
        """Return the move that settles the records of an open claim before this position.

        Raises `PositionLost` if the claim has ended.
        """
        ...

    async def fetch_settled_offset(self, claim: SourceClaim) -> int:
        """Request from the server the offset before which all records of an open claim are settled.

        Suspends. Raises `PositionLost` if the claim has ended, and client errors.
        """
        ...


@runtime_checkable
class TakesMoves(Protocol):
    """A destination whose transactions can include the moves of a source in the same database."""

    @property
    def takes_moves_of(self) -> str:
        """The kind of server, such as `PostgreSQL`."""
        ...


def destination_of(sink: object) -> object:
    """Return the innermost sink of a stack."""
    while (inner := inner_of(sink)) is not None:
        sink = inner
    return sink


def check_keeps_positions(destination: object) -> None:
    """Raise `ConfigError` if the destination does not keep positions."""
    if not isinstance(destination, KeepsPositions):
        rule = "keeps no positions of a source, so rows and position cannot commit together"
        instead = "use PostgresSink or KafkaSink, or flow.pipe (at least once)"
        raise bad("sink", destination, f"{rule}; {instead}")


class Effect(Protocol):
    """One call of a handler, in one attempt of its transaction."""

    @property
    def is_checked(self) -> bool:
        """Whether to check after the call that the transaction is still usable."""
        ...

    async def run(self, connection: object) -> None:
        """Call the handler with the connection. Raises the handler's exceptions."""
        ...

    def failed(self, error: BaseException) -> None:
        """Record that this effect caused the error."""


@runtime_checkable
class RunsEffects(Protocol):
    """A destination whose items are effects."""

    def check_handler(self, handler: object) -> None:
        """Raise `ConfigError` if the handler cannot use the connections of this destination."""
        ...


class CauseUnclear(TransientError):
    """One of the effects has made the transaction unusable; it is unknown which."""


def not_its_to_end(statement: str) -> PermanentError:
    """Return the error for a handler that tries to begin or end a transaction."""
    return PermanentError(
        f"message.connection refuses {statement}: its transaction commits together with the "
        "position after the message; raise an exception to roll back"
    )


def ended_by_handler() -> PermanentError:
    """Return the error for a handler that has ended its own transaction."""
    return PermanentError(
        "the handler has ended the transaction of message.connection with its own statement: its "
        "effects, and earlier ones, may be committed without the position, and their messages "
        "will be delivered again; leave the COMMIT to the flow, and raise an exception to roll "
        "back"
    )


def aborted_by_handler() -> PermanentError:
    """Return the error for a handler that has ignored a database error."""
    return PermanentError(
        "the handler has returned although one of its statements failed, which aborts the "
        "transaction; run a statement that may fail in `async with "
        "message.connection.transaction():`"
    )


def not_in_transaction(given: object) -> Exception:
    """Return the error for a direct write to a destination of effects."""
    rule = "runs handlers in transactions; use flow.transaction(source, sink, handler)"
    return bad("sink", given, rule)
