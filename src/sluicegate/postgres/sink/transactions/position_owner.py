"""The positions that an open sink owns, and the transactions that move them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ...._core.errors import PositionLost
from ...._core.opening import Openable
from .attempt import ServerAttempt
from .ledger import BEGIN_UNIT
from .positions import IDLE_MOST
from .transaction import PostgresTransaction

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from asyncpg.pool import PoolConnectionProxy

    from ...._core.positions import PositionUnit, UnitMove
    from ...._core.source import Position, TopicPartition
    from ...client.connections import Connections
    from .positions import OwnedPosition, PositionTable


class PositionOwner:
    """The positions that an open sink owns."""

    def __init__(
        self, table: PositionTable, connections: Connections, target: str, home: str
    ) -> None:
        self._table = table
        self._connections = connections
        self._target = target
        self._home = home
        self._owned: dict[tuple[str, TopicPartition], OwnedPosition] = {}

    @property
    def table(self) -> PositionTable:
        """The table of positions."""
        return self._table

    def _of(self, group: str, partition: TopicPartition) -> OwnedPosition:
        owned = self._owned.get((group, partition))
        if owned is None:
            raise PositionLost(f"{partition} is not claimed, or was released")
        return owned

    async def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Own these partitions; return the positions of those that have one."""
        if not partitions:
            return {}
        async with self._connections.lent(answered=True) as con:
            claimed = await self._table.claim(
                con, group, partitions, self._target, self._home, limit=self._limit
            )
        self._owned.update({(group, each.partition): each for each in claimed})
        return {each.partition: each.position for each in claimed if each.position is not None}

    @property
    def _limit(self) -> str:
        return self._connections.statements.limit

    async def read(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """The current positions of these partitions."""
        found: dict[TopicPartition, Position] = {}
        async with self._connections.lent(answered=True) as con:
            for partition in partitions:
                owned = self._of(group, partition)
                position = await self._table.read(con, owned, limit=self._limit)
                owned.moved(position)
                if position is not None:
                    found[partition] = position
        return found

    async def store(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> list[TopicPartition]:
        """Move these positions without rows; return the partitions whose positions were moved."""
        moves = [(self._of(group, each), at) for each, at in positions.items()]
        async with self._connections.lent(answered=True) as con:
            moved = await self._table.store(con, moves, limit=self._limit)
        for owned in moved:
            owned.moved(positions[owned.partition])
        return [owned.partition for owned in moved]

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions."""
        for each in partitions:
            self._owned.pop((group, each), None)

    def move_of(self, unit: PositionUnit) -> UnitMove:
        """The move of a unit's position. Raises `PositionLost` if the position is not owned."""
        if unit.own_move is not None:
            return unit.own_move
        return TableMove(
            self._table, self._of(unit.group, unit.partition), unit.position, self._limit
        )


class TableMove:
    """Moves an owned position in its table."""

    def __init__(
        self, table: PositionTable, owned: OwnedPosition, position: Position, limit: str
    ) -> None:
        self._table = table
        self._owned = owned
        self._position = position
        self._limit = limit

    @property
    def keeper(self) -> str:
        """The table of positions, for errors."""
        return f"the positions {self._table.qualified}"

    async def move(self, connection: PoolConnectionProxy[Any]) -> None:
        """Move the position. Raises `PositionLost`."""
        await self._table.advance(connection, self._owned, self._position)

    async def is_moved(self, connection: PoolConnectionProxy[Any]) -> bool:
        """Whether the stored position is the new one."""
        stored = await self._table.read(connection, self._owned, limit=self._limit)
        return stored == self._position

    def committed(self) -> None:
        """Record that the position was moved."""
        self._owned.moved(self._position)


class PositionsInTable(Openable, ABC):
    """A destination that keeps positions in a table; implements `KeepsPositions`."""

    keeps_group_offsets = False
    takes_moves_of = "PostgreSQL"

    @property
    @abstractmethod
    def _owner(self) -> PositionOwner:
        """The positions of the open destination. Raises `ClosedError`."""

    async def claim_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Own these positions from now on; return the stored ones. Suspends.

        Raises `ConfigError` for positions that belong to the rows of another table, and the
        server's errors.
        """
        return await self._owner.claim(group, partitions)

    async def read_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """The current positions of claimed partitions. Suspends. Raises `PositionLost`."""
        return await self._owner.read(group, partitions)

    async def store_positions(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions without rows; return the partitions whose positions are stored. Suspends."""
        return await self._owner.store(group, positions)

    def release_positions(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget claimed positions."""
        if self.is_open:
            self._owner.release(group, partitions)


class MovesPosition(ServerAttempt):
    """A transaction in which a position is moved last."""

    def move_by(self, move: UnitMove) -> None:
        """Use this move at the commit."""
        self._move, self._keeper = move, move.keeper

    def _settings(self, idle_most: float = IDLE_MOST) -> str:
        """The statements for the settings of this transaction."""
        idle = f"SET LOCAL idle_in_transaction_session_timeout = {round(idle_most * 1000)}"
        return f"{idle}; {self._statements.limit}"

    async def _advance(self) -> None:
        await self._move.move(self._con)

    async def is_applied(self, con: PoolConnectionProxy[Any]) -> bool:
        """Whether it was committed, according to another connection."""
        return await self._move.is_moved(con)

    def commits(self) -> None:
        """Record that the transaction is committed."""
        self._move.committed()
        super().commits()


class PositionTransaction(MovesPosition, PostgresTransaction):
    """A transaction of rows, in which a position is moved last."""

    async def _begin(self) -> None:
        await self._con.execute(f"{BEGIN_UNIT}; {self._settings()}")

    async def _record(self) -> None:
        await self._advance()
