"""States and positions in tables of PostgreSQL.

1. The position moves last in a transaction, on the condition that the ownership and the known
   position are unchanged.
2. Each transaction writes a mark beside the state, with the position and a number that the
   position's metadata repeats. A state that does not belong to the position is refused.
3. After a failure the position is read: its number shows whether the transaction is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import PositionLost, UnavailableError
from ..._core.source import Position
from ...flow.state.mark import StateMark, for_the_source
from ..sink.ledger import BEGIN_UNIT
from ..sink.positions import IDLE_MOST
from .table_mismatch import check_mark

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from ..._core.source import TopicPartition
    from ...flow.state.changes import Stored, TakenChanges
    from ..client.connections import Connections
    from ..sink.positions import OwnedPosition, PositionTable
    from .table import StateTable


class ClaimedRows:
    """A claimed position, and the number of the last transaction."""

    def __init__(self, owned: OwnedPosition) -> None:
        self.owned = owned
        self.number = 0

    def found(self, number: int) -> None:
        """Set the number of the last transaction."""
        self.number = number

    def next_mark(self, offset: int) -> StateMark:
        """Return the mark of the next transaction."""
        group, topic, _ = self.owned.key
        return StateMark(group, topic, offset, self.number + 1)

    def moved(self, mark: StateMark) -> None:
        """Record a committed transaction."""
        self.owned.moved(Position(mark.position, mark.metadata))
        self.number = mark.number


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
        self._owned: dict[TopicPartition, ClaimedRows] = {}

    async def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take over these partitions; return their stored positions."""
        async with self._connections.lent(answered=True) as con:
            claimed = await self._positions.claim(
                con, self._group, partitions, self._table.qualified, self._home, limit=self._limit
            )
        self._owned.update({each.partition: ClaimedRows(each) for each in claimed})
        known = {each.partition: each.position for each in claimed}
        return {each: for_the_source(at) for each, at in known.items() if at is not None}

    async def pages(
        self, partition: TopicPartition, entries: Mapping[str, Stored]
    ) -> AsyncGenerator[Sequence[tuple[str, Stored]]]:
        """Yield the rows of a partition, from one snapshot.

        Raises `ConfigError` for a state of a different position.
        """
        del entries  # the table cannot lose single rows
        claimed = self._of(partition)
        async with self._connections.lent(answered=True) as con:
            await con.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            mark = await self._table.mark(con, self._group, partition)
            check_mark(mark, claimed.owned, self._table, self._positions)
            claimed.found(0 if mark is None else mark.number)
            async for page in self._table.pages(con, self._group, partition):
                yield page
            await con.execute("COMMIT")

    async def store(self, partition: TopicPartition, taken: TakenChanges) -> None:
        """Write the changes, and move the position. Raises `PositionLost`, and the server's errors."""
        claimed = self._of(partition)
        mark = claimed.next_mark(taken.offset)
        idle = f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_MOST}s'"
        async with self._connections.lent(answered=True) as con:
            await con.execute(f"{BEGIN_UNIT}; {idle}; {self._limit}")
            await self._table.apply(con, self._group, partition, taken.changes)
            await self._table.set_mark(con, partition, mark)
            await self._positions.advance(
                con, claimed.owned, Position(mark.position, mark.metadata)
            )
            if (answer := await con.execute("COMMIT")) != "COMMIT":
                raise UnavailableError(f"the transaction ended by {answer} instead of COMMIT")
            claimed.moved(mark)

    async def has_stored(self, partition: TopicPartition, taken: TakenChanges) -> bool:
        """Whether the position is that of the next transaction. Raises `PositionLost`."""
        claimed = self._of(partition)
        mark = claimed.next_mark(taken.offset)
        async with self._connections.lent(answered=True) as con:
            known = await self._positions.read(con, claimed.owned, limit=self._limit)
        if known == Position(mark.position, mark.metadata):
            claimed.moved(mark)
            return True
        if known != claimed.owned.position:
            raise PositionLost(f"the position of {partition} was changed by other means")
        return False

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions."""
        for each in partitions:
            self._owned.pop(each, None)

    @property
    def _limit(self) -> str:
        return self._connections.statements.limit

    def _of(self, partition: TopicPartition) -> ClaimedRows:
        claimed = self._owned.get(partition)
        if claimed is None:
            raise PositionLost(f"{partition} is no longer owned")
        return claimed
