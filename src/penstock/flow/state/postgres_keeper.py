"""States and positions in tables of PostgreSQL.

1. The position moves last in a transaction, on the condition that the ownership and the known
   position are unchanged.
2. After a failure the position is read. Changes that may already be stored are written again: they
   are values, not increments, and no other owner has written since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import PositionLost, UnavailableError
from ..._core.source import Position
from ...sinks.postgres.transactions.ledger import BEGIN_UNIT
from ...sinks.postgres.transactions.positions import IDLE_MOST

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from ..._clients.postgres.connections import Connections
    from ..._core.source import TopicPartition
    from ...sinks.postgres.transactions.positions import OwnedPosition, PositionTable
    from .changes import Stored, TakenChanges
    from .table import StateTable


class PostgresKeeper:
    """The states and positions of one consumer group: a `StateKeeper`."""

    keeps_group_offsets = False

    def __init__(
        self,
        group: str,
        table: StateTable,
        positions: PositionTable,
        connections: Connections,
        home: str,
    ) -> None:
        self._group = group
        self._table = table
        self._positions = positions
        self._connections = connections
        self._home = home
        self._owned: dict[TopicPartition, OwnedPosition] = {}

    async def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take over these partitions; return their stored positions."""
        async with self._connections.lent() as con:
            claimed = await self._positions.claim(
                con, self._group, partitions, self._table.qualified, self._home, limit=self._limit
            )
        self._owned.update({each.partition: each for each in claimed})
        return {each.partition: each.position for each in claimed if each.position is not None}

    async def pages(
        self, partition: TopicPartition
    ) -> AsyncGenerator[Sequence[tuple[str, Stored]]]:
        """Yield the rows of a partition, from one snapshot."""
        async with self._connections.lent() as con:
            await con.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            async for page in self._table.pages(con, self._group, partition):
                yield page
            await con.execute("COMMIT")

    async def store(self, partition: TopicPartition, taken: TakenChanges) -> None:
        """Write the changes, and move the position. Raises `PositionLost`, and the server's errors."""
        owned, position = self._of(partition), Position(taken.offset)
        idle = f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_MOST}s'"
        async with self._connections.lent() as con:
            await con.execute(f"{BEGIN_UNIT}; {idle}; {self._limit}")
            await self._table.apply(con, self._group, partition, taken.changes)
            await self._positions.advance(con, owned, position)
            if (answer := await con.execute("COMMIT")) != "COMMIT":
                raise UnavailableError(f"the transaction ended by {answer} instead of COMMIT")
            owned.moved(position)

    async def has_stored(self, partition: TopicPartition, taken: TakenChanges) -> bool:
        """Whether the position has moved to this offset. Raises `PositionLost`."""
        owned = self._of(partition)
        before = owned.position
        async with self._connections.lent() as con:
            owned.moved(await self._positions.read(con, owned, limit=self._limit))
        return owned.position != before and owned.position == Position(taken.offset)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions."""
        for each in partitions:
            self._owned.pop(each, None)

    @property
    def _limit(self) -> str:
        return self._connections.statements.limit

    def _of(self, partition: TopicPartition) -> OwnedPosition:
        owned = self._owned.get(partition)
        if owned is None:
            raise PositionLost(f"{partition} is no longer owned")
        return owned
