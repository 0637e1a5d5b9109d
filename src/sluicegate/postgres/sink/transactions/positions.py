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
"""

# ruff: noqa: S608  # the table's own name is the only text that is put into statements, quoted

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...._core import checks
from ...._core.checks import bad
from ...._core.errors import PositionLost
from ...._core.source import Position, TopicPartition
from ...client.names import literal, qualified
from ...client.statements import BEGIN
from .creation import create_missing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

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


class OwnedPosition:
    """A claimed position: the epoch of its owner, and the last known position."""

    __slots__ = ("epoch", "group", "partition", "position", "target")

    def __init__(
        self,
        group: str,
        partition: TopicPartition,
        target: str,
        epoch: int,
        position: Position | None,
    ) -> None:
        self.group = group
        self.partition = partition
        self.target = target
        self.epoch = epoch
        self.position = position

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
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        return f"CREATE TABLE IF NOT EXISTS {self.qualified} ({columns}, PRIMARY KEY ({', '.join(_KEY)}))"

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
            raise PositionLost(f"{self.qualified}: {self._told(owned, row)}")

    def _told(self, owned: OwnedPosition, row: Record | None) -> str:
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
            raise PositionLost(f"{self.qualified}: {self._told(owned, row)}")
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
