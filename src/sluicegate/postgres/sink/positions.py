"""The table in which PostgreSQL stores the positions of a source, in the transactions of their
rows.

1. There is one row per consumer group, topic and partition. A claim increases its `epoch`, which
   ends the previous ownership: an owner moves the position only in its own epoch, and only from the
   position that it knows. That is the last statement before the COMMIT.
2. A claim waits for an earlier owner between that statement and the end of its COMMIT, but no
   longer, since the lock is taken last. If an owner hangs there, the server ends it after
   `IDLE_MOST` seconds.
3. A row names the table that contains the rows before its position, with its oid. A recreated table
   with the same name does not contain them, so the claim is refused, with a choice of statements.
   The same oid under another name is a renamed table: its new name is stored.
4. A missing row, or a row without a position, begins at the source's start point.
5. An open destination owns its positions (`PositionOwner`), and its transactions move them.
"""

# ruff: noqa: S608  # the table's own name is the only text that is put into statements, quoted

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import PositionLost
from ..._core.opening import Openable
from ..._core.source import Position, TopicPartition
from ..client.errors import NO_PRIVILEGE, sqlstate
from ..client.names import creation, literal, qualified
from ..client.refusals import refusal
from ..client.statements import BEGIN
from .ledger import BEGIN_UNIT, create_missing
from .transaction import PostgresTransaction, ServerAttempt

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

    from ..._core.positions import PositionUnit, UnitMove
    from ..client.connections import Connections


LOCK_WITHIN = 5
"""Seconds for which a claim waits for the transaction of an earlier owner."""
IDLE_MOST = 10
"""Seconds for which a transaction may be idle between two statements."""
_BEGIN = (
    f"{BEGIN}; SET LOCAL lock_timeout = '{LOCK_WITHIN}s'; "
    f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_MOST}s'"
)
"""The limit on how long a process that freezes in the transaction holds the rows."""

_COLUMNS = {
    "consumer_group": "text",
    "topic": "text",
    "partition": "int",
    "position": "bigint",
    "metadata": "text NOT NULL DEFAULT ''",
    "epoch": "bigint NOT NULL",
    "target": "text NOT NULL",
    "target_oid": "oid NOT NULL",
    "updated_at": "timestamptz NOT NULL DEFAULT now()",
}
_KEY = ("consumer_group", "topic", "partition")
_THIS = "consumer_group = $1 AND topic = $2 AND partition = $3"


@dataclass(eq=False, slots=True)
class OwnedPosition:
    """A claimed position: the epoch of its owner, and the last known position."""

    group: str
    partition: TopicPartition
    target: str
    epoch: int
    position: Position | None

    def moved(self, position: Position | None) -> None:
        """Record the current position."""
        self.position = position

    @property
    def key(self) -> tuple[str, str, int]:
        """The key of its row."""
        return self.group, self.partition.topic, self.partition.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionTable:
    """The table of positions. Raises `ConfigError` for a bad name."""

    table: str
    schema: str | None
    marks_rows: bool = False
    """Whether the metadata of a position names the content of its table."""

    def __post_init__(self) -> None:
        checks.text("positions", self.table)

    @property
    def qualified(self) -> str:
        """The table's name in statements."""
        return qualified(self.schema, self.table)

    @property
    def creation(self) -> str:
        """The statement that creates the table."""
        return creation(self.qualified, _COLUMNS, _KEY)

    async def claim(
        self,
        con: PoolConnectionProxy[Any],
        group: str,
        partitions: Collection[TopicPartition],
        target: str,
        home: str,
        *,
        limit: str = "",
    ) -> list[OwnedPosition]:
        """Own these positions, in one transaction with `limit`.

        Creates a missing table, in the schema `home` unless the table has its own. Suspends while
        an earlier owner commits. Raises `ConfigError` for positions that belong to the rows of
        another table, and the server's error, for example if a lock was not available in time.
        """
        try:
            return await self._claim(con, group, partitions, target, limit)
        except Exception as error:
            if sqlstate(error) == NO_PRIVILEGE:
                repair = (
                    f"grant SELECT, INSERT and UPDATE on table {self.qualified} to the sink's role"
                )
                raise refusal(error, "the positions of the flow", repair)  # noqa: B904  # it has its cause
            made = replace(self, schema=self.schema or home)
            await create_missing(con, error, "positions", self.qualified, made.creation)
        return await self._claim(con, group, partitions, target, limit)

    async def _claim(
        self,
        con: PoolConnectionProxy[Any],
        group: str,
        partitions: Collection[TopicPartition],
        target: str,
        limit: str,
    ) -> list[OwnedPosition]:
        await con.execute(f"{_BEGIN}; {limit}")
        ordered = sorted(partitions)
        found = await con.fetch(
            f"INSERT INTO {self.qualified} AS p ({', '.join(_KEY)}, target, target_oid, epoch) "
            f"SELECT $1, g.topic, g.part, $4, {_oid('$4')}, 1 FROM unnest($2::text[], $3::int[]) "
            "WITH ORDINALITY AS g(topic, part, place) ORDER BY g.place "
            f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET epoch = p.epoch + 1, updated_at = now() "
            f"RETURNING p.*, {_oid('$4')} AS oid_now",
            group,
            [each.topic for each in ordered],
            [each.partition for each in ordered],
            target,
        )
        for row in found:
            checks.known_format("positions", self.qualified, row["format"])
            self._check_target(row, target)
        if any((row["target"], row["target_oid"]) != (target, row["oid_now"]) for row in found):
            await con.execute(
                f"UPDATE {self.qualified} SET target = $2, target_oid = {_oid('$2')} "
                "WHERE consumer_group = $1 AND (topic, partition) IN "
                "(SELECT * FROM unnest($3::text[], $4::int[]))",
                group,
                target,
                [each.topic for each in ordered],
                [each.partition for each in ordered],
            )
        await con.execute("COMMIT")
        return [
            OwnedPosition(group, _partition(row), target, row["epoch"], _position(row))
            for row in found
        ]

    def _check_target(self, row: Record, target: str) -> None:
        """Raise `ConfigError` if the position belongs to the rows of another table."""
        now, stored = row["oid_now"], row["target_oid"]
        if row["position"] is None or stored == now:
            return
        where = f"consumer_group = {literal(row['consumer_group'])} AND target_oid = {stored}"
        becomes = f"target = {literal(target)}, target_oid = {now}"
        continues = f"{becomes}, metadata = ''" if self.marks_rows else becomes
        if row["target"] == target:
            why = (
                f"a table {target} with the oid {stored}, and the table of this name now has "
                f"{now}: it was dropped and recreated, or restored from a dump, so it may not "
                "contain them"
            )
        else:
            why = (
                f"the table {row['target']} (oid {stored}), and this flow writes to {target} (oid "
                f"{now}); a flow into another table requires its own consumer group"
            )
        raise bad(
            "positions",
            self.qualified,
            f"has the position {row['position']} of {_partition(row)} in the group "
            f"{row['consumer_group']!r}, which refers to rows in {why}. To continue from the "
            f"position: UPDATE {self.qualified} SET {continues} WHERE {where}; or to write the "
            f"records again from offset 0: UPDATE {self.qualified} SET {becomes}, position = 0, "
            f"metadata = '' WHERE {where};",
        )

    async def advance(
        self, con: PoolConnectionProxy[Any], owned: OwnedPosition, position: Position
    ) -> None:
        """Move the position, as the last statement of a transaction. Raises `PositionLost`."""
        is_moved = await con.fetchval(
            f"UPDATE {self.qualified} SET position = $6, metadata = $7, updated_at = now() "
            f"WHERE {_THIS} AND epoch = $4 AND position IS NOT DISTINCT FROM $5 "
            f"AND target_oid = {_oid('$8')} RETURNING true",
            *owned.key,
            owned.epoch,
            None if owned.position is None else owned.position.offset,
            *position,
            owned.target,
        )
        if not is_moved:
            row = await self._row(con, owned)
            raise PositionLost(f"{self.qualified}: {self._reason(owned, row)}")

    def _reason(self, owned: OwnedPosition, row: Record | None) -> str:
        """The reason why the position could not be moved."""
        if row is None:
            return "its row was deleted; the next assignment begins at the source's start point"
        if row["epoch"] != owned.epoch:
            return f"another process took it over (epoch {row['epoch']}, not {owned.epoch})"
        if row["target_oid"] != row["oid_now"]:
            return f"the table {owned.target} was dropped and recreated"
        known = None if owned.position is None else owned.position.offset
        return f"it was changed from {known} to {row['position']} by other means"

    async def _row(
        self, con: PoolConnectionProxy[Any], owned: OwnedPosition, lock: str = ""
    ) -> Record | None:
        return await con.fetchrow(
            f"SELECT *, {_oid('$4')} AS oid_now FROM {self.qualified} WHERE {_THIS} {lock}",
            *owned.key,
            owned.target,
        )

    async def read(
        self, con: PoolConnectionProxy[Any], owned: OwnedPosition, *, limit: str = ""
    ) -> Position | None:
        """The current position, after the end of any transaction that moves it.

        Raises `PositionLost` if the position has another owner.
        """
        await con.execute(f"{_BEGIN}; {limit}")
        row = await self._row(con, owned, "FOR UPDATE")
        await con.execute("ROLLBACK")
        if row is None or row["epoch"] != owned.epoch:
            raise PositionLost(f"{self.qualified}: {self._reason(owned, row)}")
        return _position(row)

    async def store(
        self,
        con: PoolConnectionProxy[Any],
        moves: Sequence[tuple[OwnedPosition, Position]],
        *,
        limit: str = "",
    ) -> list[OwnedPosition]:
        """Move positions without rows, in one transaction; return those that were moved."""
        moved: list[OwnedPosition] = []
        await con.execute(f"{_BEGIN}; {limit}")
        for owned, position in sorted(moves, key=lambda move: move[0].key):
            try:
                await self.advance(con, owned, position)
            except PositionLost:
                continue
            moved.append(owned)
        await con.execute("COMMIT")
        return moved


def _oid(name: str) -> str:
    return f"coalesce(pg_catalog.to_regclass({name})::oid, 0::oid)"


def _partition(row: Record) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def _position(row: Record) -> Position | None:
    return None if row["position"] is None else Position(row["position"], row["metadata"])


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
        """Drop these partitions."""
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
        """Give up the claims of these partitions."""
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
