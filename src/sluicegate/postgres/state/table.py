"""The PostgreSQL table with the state of partitions.

1. It has a row per consumer group, topic, partition and key. A row is written only in a transaction
   that moves the partition's position in the ledger of positions, which fences earlier owners.
2. The ledger stores the table's oid with each position, so that a recreated table without the state
   before the position is refused.
3. A restore reads the rows of a partition in the order of their keys, one page at a time. A cursor
   of asyncpg would prepare a statement, which a pooler in transaction mode leaves in a session that
   others use.
4. The number of written and deleted rows is checked: a trigger or rule that leaves some out would
   change the state without an error.
5. The mark of a partition is a row as well. Its partition is negative (-1 for 0, -2 for 1, and so
   on), so that it is not an entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ConfigError, PositionLost, RefusedError
from ..._core.source import TopicPartition
from ...flow.state.changes import StateMark, mismatch
from ...flow.state.store import check_size
from ..client.names import literal, qualified
from ..client.types import identity
from ..sink.ledger import make_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ...flow.state.changes import Stored
    from ..sink.positions import OwnedPosition, PositionTable


# ruff: noqa: S608  # only the quoted name of the table is inserted into statements


PAGE = 5000
"""Rows in a page of a restore, and the maximum number of rows in a statement."""
PAGE_SIZE = 4 << 20
"""Maximum number of characters, or bytes, of values in a statement; a larger value is written
alone.
"""
LARGEST_VALUE = 16 << 20
"""Maximum number of bytes in an encoded value."""

MARK_KEY = "sluicegate"
_KEY = ("consumer_group", "topic", "partition", "key")
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_RIGHTS_TO_POSITIONS = ("SELECT", "INSERT", "UPDATE")
_THESE = "WHERE consumer_group = $1 AND topic = $2 AND partition = $3 AND key = ANY($4::text[])"
_FACTS = f"""
SELECT c.oid::int8 AS oid, c.relkind::text AS kind, n.nspname AS home,
    row_security_active(c.oid) AS hides,
    ARRAY(SELECT r FROM unnest($2::text[]) AS r WHERE NOT has_table_privilege(c.oid, r)) AS lacking,
    ARRAY(SELECT a.attname || ' ' || {identity("a.atttypid")} FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
    ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(n, at),
        pg_attribute a WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid
        AND a.attnum = k.n ORDER BY k.at) AS key
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTable:
    """The table of state. Raises `ConfigError` for an invalid name."""

    table: str
    schema: str | None
    column: str
    """The type of its values."""

    def __post_init__(self) -> None:
        checks.text("table", self.table)
        if self.schema is not None:
            checks.text("schema", self.schema)

    def check_value(self, key: str, stored: Stored) -> None:
        """Raise `ConfigError` for a value that does not fit into a column of this type."""
        check_size(key, stored, LARGEST_VALUE)
        if self.column == "text" and "\0" in cast("str", stored):
            raise ConfigError(
                f"the value of {key!r} contains a NUL, which PostgreSQL does not allow in text"
            )

    @property
    def qualified(self) -> str:
        """The qualified name of the table in statements."""
        return qualified(self.schema, self.table)

    @property
    def creation(self) -> str:
        """The statement that creates the table."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.qualified} (consumer_group text, topic text, "
            f'partition int, key text COLLATE "C", value {self.column} NOT NULL, '
            f"PRIMARY KEY ({', '.join(_KEY)}))"
        )

    async def examine(self, con: PoolConnectionProxy[Any]) -> None:
        """Create the table if it does not exist, and check its columns and the privileges of the
        role.

        Raises `ConfigError`, and the server's errors.
        """
        facts = await con.fetchrow(_FACTS, self.qualified, _RIGHTS)
        if facts is None:
            await make_table(con, "table", self.qualified, self.creation)
            facts = await con.fetchrow(_FACTS, self.qualified, _RIGHTS)
        if facts is None:
            rule = f"was not found; create it by: {self.creation}"
            raise bad("table", self.qualified, rule)
        expected = {
            "consumer_group text",
            "topic text",
            "partition integer",
            "key text",
            f"value {self.column}",
        }
        found = set(facts["columns"])
        if facts["kind"] not in {"r", "p"} or not found >= expected or tuple(facts["key"]) != _KEY:
            rule = f"is a table of another shape ({', '.join(sorted(found))}); it is created by: {self.creation}"
            raise bad("table", self.qualified, rule)
        _check_rights("table", self.qualified, facts["lacking"])
        if facts["hides"]:
            rule = "has row security, which can hide rows of the state from this role; disable it"
            raise bad("table", self.qualified, rule)

    async def examine_positions(self, con: PoolConnectionProxy[Any], made: PositionTable) -> None:
        """Create the positions table if it does not exist, and check the privileges of the role.

        Raises `ConfigError`, and the server's errors.
        """
        facts = await con.fetchrow(_FACTS, made.qualified, _RIGHTS_TO_POSITIONS)
        if facts is None:
            await make_table(con, "positions", made.qualified, made.creation)
        else:
            _check_rights("positions", made.qualified, facts["lacking"])

    async def mark(
        self, con: PoolConnectionProxy[Any], group: str, partition: TopicPartition
    ) -> StateMark | None:
        """Read the mark of a partition; `None` if there is none. Raises `ConfigError`."""
        stored = await con.fetchval(
            f"SELECT value{self._as_read} FROM {self.qualified} WHERE consumer_group = $1 "
            "AND topic = $2 AND partition = $3 AND key = $4",
            group,
            *mark_place(partition),
            MARK_KEY,
        )
        if stored is None:
            return None
        try:
            return StateMark.decoded(stored, "table", self.qualified)
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            rule = f"has a row of a state's own, with the key {MARK_KEY!r}, that was changed: {stored!r}"
            raise bad("table", self.qualified, rule) from error

    async def set_mark(
        self, con: PoolConnectionProxy[Any], partition: TopicPartition, mark: StateMark
    ) -> None:
        """Write the mark of a partition, in an open transaction.

        Raises `PositionLost` if the previous mark is missing: the rows were deleted.
        """
        value = mark.encoded().encode() if self.column == "bytea" else mark.encoded()
        place = mark_place(partition)
        if mark.number == 1:
            await self.apply(con, mark.group, place, {MARK_KEY: value})
            return
        kind = "bytea" if self.column == "bytea" else "text"
        statement = f"UPDATE {self.qualified} SET value = $1::{kind}::{self.column} "
        where = "WHERE consumer_group = $2 AND topic = $3 AND partition = $4 AND key = $5"
        answer = await con.execute(statement + where, value, mark.group, *place, MARK_KEY)
        if answer != "UPDATE 1":
            told = f"the rows of {partition} in {self.qualified} were deleted while it was used"
            raise PositionLost(told)

    @property
    def _as_read(self) -> str:
        return "" if self.column == "bytea" else "::text"

    async def pages(
        self, con: PoolConnectionProxy[Any], group: str, partition: TopicPartition
    ) -> AsyncIterator[Sequence[tuple[str, Stored]]]:
        """Yield the rows of a partition, one page at a time. Needs an open transaction."""
        entries = (
            f"SELECT key, value{self._as_read} FROM {self.qualified} "
            "WHERE consumer_group = $1 AND topic = $2 AND partition = $3"
        )
        end, where = f"ORDER BY key LIMIT {PAGE}", (group, *partition)
        rows = await con.fetch(f"{entries} {end}", *where)
        while rows:
            yield [(row[0], row[1]) for row in rows]
            rows = await con.fetch(f"{entries} AND key > $4 {end}", *where, rows[-1][0])

    async def apply(
        self,
        con: PoolConnectionProxy[Any],
        group: str,
        partition: TopicPartition,
        changes: Mapping[str, Stored | None],
    ) -> None:
        """Set and delete keys, in an open transaction; rows are locked in the order of their keys.

        Raises `RefusedError` if rows are left out, and the server's errors.
        """
        where = (group, *partition)
        changes = dict(sorted(changes.items()))
        for part in _parts({key: value for key, value in changes.items() if value is not None}):
            kind = "bytea" if self.column == "bytea" else "text"
            answer = await con.execute(
                f"INSERT INTO {self.qualified} ({', '.join(_KEY)}, value) "
                f"SELECT $1, $2, $3, g.key, g.value::{self.column} "
                f"FROM unnest($4::text[], $5::{kind}[]) AS g(key, value) "
                f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET value = excluded.value",
                *where,
                list(part),
                list(part.values()),
            )
            if answer != f"INSERT 0 {len(part)}":
                raise self._left_out(f"wrote {answer.split()[-1]} of {len(part)} rows")
        gone = [key for key, value in changes.items() if value is None]
        for at in range(0, len(gone), PAGE):
            keys = gone[at : at + PAGE]
            answer = await con.execute(f"DELETE FROM {self.qualified} {_THESE}", *where, keys)
            if answer != f"DELETE {len(keys)}":  # some are new, or are left
                left = await con.fetchval(
                    f"SELECT count(*) FROM {self.qualified} {_THESE}", *where, keys
                )
                if left:
                    raise self._left_out(f"did not delete {left} of {len(keys)} rows")

    def _left_out(self, told: str) -> RefusedError:
        repair = f"remove the trigger or rule on {self.qualified} that leaves rows out"
        return RefusedError(f"the table {self.qualified} {told} of the state", repair=repair)


def mark_place(partition: TopicPartition) -> TopicPartition:
    """Return the partition of the row with a partition's mark."""
    return TopicPartition(partition.topic, -1 - partition.partition)


def _check_rights(option: str, table: str, lacking: Sequence[str]) -> None:
    if lacking:
        rule = f"needs more privileges: GRANT {', '.join(lacking)} ON {table} TO the role of this state"
        raise bad(option, table, rule)


def _parts(changes: Mapping[str, Stored]) -> list[dict[str, Stored]]:
    """Split the changes into parts that fit into one statement."""
    parts: list[dict[str, Stored]] = []
    size = 0
    for key, value in changes.items():
        size += len(value)
        if not parts or len(parts[-1]) >= PAGE or size > PAGE_SIZE:
            parts.append({})
            size = len(value)
        parts[-1][key] = value
    return parts


# ruff: noqa: S608  # statements for the operator, with quoted names and literals; none is executed


def check_mark(
    mark: StateMark | None, owned: OwnedPosition, table: StateTable, positions: PositionTable
) -> None:
    """Raise `ConfigError` unless the state with this mark is that of the owned position."""
    found = mismatch(mark, owned.position)
    if found is None:
        return
    partition, position = owned.partition, owned.position
    at = "no position" if position is None else f"the position {position.offset}"
    source = f"consumer_group = {literal(owned.group)} AND topic = {literal(partition.topic)}"
    row = f"{source} AND partition = {partition.partition}"
    both = f"partition IN ({partition.partition}, {mark_place(partition).partition})"
    accept = f"UPDATE {positions.qualified} SET metadata = '' WHERE {row};"
    if mark is None:
        why = (
            f"has no state of {partition}, but the group {owned.group!r} has {at}, which was stored with "
            f"one: rows were deleted. Restore them; or to continue with the remaining rows: {accept}"
        )
    else:
        why = (
            f"has the state of {partition} at {mark.position}, but the group {owned.group!r} has {at}"
            f"{': it was moved without the state' if found == 'moved' else ' of a later transaction'}. "
            "To continue with this state: "
            f"UPDATE {positions.qualified} SET position = {mark.position}, metadata = '' WHERE {row}; "
            "or to continue from the group's position with this state nevertheless: "
            f"DELETE FROM {table.qualified} WHERE {source} AND partition = {mark_place(partition).partition} "
            f"AND key = {literal(MARK_KEY)}; {accept} "
            "or to continue from there with an empty state: "
            f"DELETE FROM {table.qualified} WHERE {source} AND {both}; {accept}"
        )
    raise bad("table", table.qualified, why)
