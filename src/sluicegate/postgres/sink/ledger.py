"""The ledger: the table in which PostgreSQL records committed units, in the units' transactions.

1. A unit's row is inserted first, and is unique per (application, version, part, target). So a
   second attempt waits in its `INSERT` until the first has ended. Then it either finds no row and
   continues, or finds the row and writes nothing.
2. The target is the qualified name of the written table. Server and database need no column: a row
   of the ledger commits with the rows that it represents, so it is in their database.
3. A name can be given to a new table. So the table's oid is stored as well, once the rows are in
   the table and keep it from being dropped. A replay whose unit was committed to another table with
   this name is refused, since this table may contain other rows. The same oid under another name is
   a renamed table, which contains the rows committed under that name: it is refused too.
4. The counts are stored last, with the commit. Until then no other session sees the row.
5. Parts, rule and types must equal those of the version's other rows for this target. They are
   compared at both ends, since rows of concurrent attempts cannot see each other before they
   commit.
6. For each application and target the last `KEPT_VERSIONS` versions are kept. An older version is
   refused, since the ledger does not show whether it was committed. Pruning runs outside any
   transaction, since it would block other parts inside one.
7. The first attempt that needs a table creates it: the ledger here, positions and states elsewhere.
   A concurrent one finds it created, or created meanwhile (`create_missing`).
"""

# ruff: noqa: S608  # the table's own name is the only text that is put into statements, quoted

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import UnitRefused
from ..._core.transaction import Committed, Counts, Unit, check_same_parts
from ..client.errors import sqlstate
from ..client.names import creation, literal, qualified
from ..client.statements import BEGIN as BEGIN_AT_LEVEL

if TYPE_CHECKING:
    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy


BEGIN = f"{BEGIN_AT_LEVEL}; SET CONSTRAINTS ALL IMMEDIATE"
"""Deferred constraints are checked immediately, as at the end of a single write, so errors name a
row.
"""
ON_DISK = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE "
    "current_setting('synchronous_commit') = 'off'"
)
"""A committed unit counts as complete, so its commit must be on disk."""
BEGIN_UNIT = f"{BEGIN}; {ON_DISK}"
_COUNTS = ("rows", "delivered", "duplicate", "dead_lettered", "failed")
_COLUMNS = {
    "application": "text",
    "version": "bigint",
    "part": "int",
    "target": "text",
    "target_oid": "oid NOT NULL",
    "parts": "int NOT NULL",
    "rule": "text NOT NULL",
    "types": "text NOT NULL",
    **dict.fromkeys((*_COUNTS, "letters_held"), "bigint NOT NULL DEFAULT 0"),
    "content_of": "text NOT NULL DEFAULT ''",
    "content": "bigint",
    "begun_at": "timestamptz NOT NULL DEFAULT now()",
}
_KEY = ("application", "version", "part", "target")
_STORED = (*_COUNTS, "content_of", "content")
_THIS = "application = $1 AND version = $2 AND part = $3 AND target = $4"
_OTHERWISE = "parts <> $5 OR rule <> $6 OR (types <> $7 AND types <> '' AND $7 <> '')"
_OID = "coalesce(pg_catalog.to_regclass($4)::oid, 0)"
_NO_TABLE = "42P01"
_MADE_MEANWHILE = frozenset({"23505", "42P07", "42710"})
_ANOTHER_TABLE = frozenset({"42703", "42P10", "42804", "42809"})


KEPT_VERSIONS = 100
"""Number of versions kept for each application and target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLedger:
    """The ledger's table. Raises `ConfigError`."""

    table: str
    schema: str | None

    def __post_init__(self) -> None:
        checks.text("ledger", self.table)

    @property
    def qualified(self) -> str:
        """The table's name in statements."""
        return qualified(self.schema, self.table)

    @property
    def creation(self) -> str:
        """The statement that creates the table."""
        return creation(self.qualified, _COLUMNS, _KEY)

    async def begin(
        self,
        con: PoolConnectionProxy[Any],
        unit: Unit,
        target: str,
        home: str,
        *,
        limit: str = "",
    ) -> Committed | None:
        """Begin the unit's transaction with `limit`; return the counts that an earlier attempt has
        committed to `target`.

        Suspends while another attempt is in progress. Creates a missing table, in the target's
        schema `home` unless the ledger has its own. Raises `UnitRefused`, and `ConfigError` if the
        table cannot be created, or is not a ledger.
        """
        try:
            return await self._begin(con, unit, target, limit)
        except Exception as error:
            made = replace(self, schema=self.schema or home)
            await create_missing(con, error, "ledger", self.qualified, made.creation)
        return await self._begin(con, unit, target, limit)

    async def _begin(
        self, con: PoolConnectionProxy[Any], unit: Unit, target: str, limit: str
    ) -> Committed | None:
        await con.execute(f"{BEGIN_UNIT}; {limit}")
        is_new = await self._insert(con, unit, target)
        known = await con.fetch(
            f"SELECT *, {_OID} AS oid_now FROM {self.qualified}"
            f" WHERE application = $1 AND version = $2 AND target = $4 AND (part = $3 OR {_OTHERWISE})"
            " ORDER BY part = $3 LIMIT 2",
            *_values(unit, target),
        )
        for row in known:
            self._check_format(row["format"])
            check_same_parts(unit, _unit(row))
        if known and not is_new:
            self._check_target(unit, target, known[-1])
            return _counts_of(known[-1])
        await self._check_new(con, unit, target)
        return None

    def _check_format(self, found: int) -> None:
        checks.known_format("ledger", self.qualified, found)

    async def _insert(self, con: PoolConnectionProxy[Any], unit: Unit, target: str) -> bool:
        statement = (
            f"INSERT INTO {self.qualified} ({', '.join(_KEY)}, parts, rule, types, target_oid) "
            f"VALUES ($1, $2, $3, $4, $5, $6, $7, {_OID})"
            f" ON CONFLICT ({', '.join(_KEY)}) DO NOTHING RETURNING format"
        )
        found = await con.fetchval(statement, *_values(unit, target))
        if found is not None:
            self._check_format(found)
        return found is not None

    def _check_target(self, unit: Unit, target: str, row: Record) -> None:
        """Raise `UnitRefused` if the row belongs to another table that had the target's name."""
        if row["target_oid"] not in {row["oid_now"], 0}:
            where = (
                f"application = {literal(unit.application)} AND target = "
                f"{literal(target)} AND target_oid = {row['target_oid']}"
            )
            raise UnitRefused(
                f"unit={unit.name!r}: it was committed to a table {target} with the oid "
                f"{row['target_oid']}, and the table of this name now has {row['oid_now']}: it was "
                "dropped and recreated, or restored from a dump, so it may not contain the unit's "
                f"rows. To write them again: DELETE FROM {self.qualified} WHERE {where} AND "
                f"version = {unit.version}; or to accept them as committed: UPDATE "
                f"{self.qualified} SET target_oid = {row['oid_now']} WHERE {where};"
            )

    async def _check_new(self, con: PoolConnectionProxy[Any], unit: Unit, target: str) -> None:
        """Raise `UnitRefused` if the unit may be committed under another name, or pruned."""
        found = await con.fetchrow(
            f"SELECT {_OID} AS oid, (SELECT count(*) FROM (SELECT DISTINCT version FROM "
            f"{self.qualified} WHERE application = $1 AND version > $2"
            " AND target = $4 LIMIT $3) AS later) AS later, (SELECT target FROM "
            f"{self.qualified} WHERE application = $1 AND version = $2"
            f" AND target <> $4 AND target_oid = nullif({_OID}, 0) LIMIT 1) AS earlier",
            unit.application,
            unit.version,
            KEPT_VERSIONS,
            target,
        )
        assert found is not None
        if (earlier := found["earlier"]) is not None:
            where = (
                f"application = {literal(unit.application)} AND target = "
                f"{literal(earlier)} AND target_oid = {found['oid']}"
            )
            raise UnitRefused(
                f"unit={unit.name!r}: its version was committed to this table under the name "
                f"{earlier}, and the table is now {target}. To accept it as committed: UPDATE "
                f"{self.qualified} SET target = {literal(target)} WHERE {where}; or, if the table "
                f"does not contain its rows, to write them again: DELETE FROM {self.qualified} "
                f"WHERE {where} AND version = {unit.version};"
            )
        if found["later"] == KEPT_VERSIONS:
            raise UnitRefused(
                f"unit={unit.name!r}: the ledger {self.qualified} keeps {KEPT_VERSIONS} "
                "versions of an application and has that many later ones, "
                "so it does not show whether this one was committed; use a later version"
            )

    async def complete(
        self,
        con: PoolConnectionProxy[Any],
        unit: Unit,
        target: str,
        counts: Counts,
        letters_held: int,
    ) -> None:
        """Store the counts, immediately before the commit.

        Raises `UnitRefused` if other parts of the version were committed meanwhile.
        """
        stored = ", ".join(
            f"{name} = ${place}" for place, name in enumerate((*_STORED, "letters_held"), 5)
        )
        values = [getattr(counts, name) for name in _STORED]
        await con.execute(
            f"UPDATE {self.qualified} SET target_oid = {_OID}, {stored} WHERE {_THIS}",
            *_key(unit, target),
            *values,
            letters_held,
        )
        others = await con.fetch(
            f"SELECT * FROM {self.qualified} WHERE application = $1 AND version = $2 AND part "
            f"<> $3 AND target = $4 AND ({_OTHERWISE})"
            " LIMIT 1",
            *_values(unit, target),
        )
        for row in others:
            check_same_parts(unit, _unit(row))

    async def has(self, con: PoolConnectionProxy[Any], unit: Unit, target: str) -> bool:
        """Whether the unit is committed; waits for the end of an attempt in progress."""
        await con.execute(BEGIN)
        is_new = await self._insert(con, unit, target)
        await con.execute("ROLLBACK")
        return not is_new

    async def follow(self, con: PoolConnectionProxy[Any], target: str, old: int) -> None:
        """Record, in the open transaction, that a new table has replaced the one with the oid
        `old`.
        """
        now = "pg_catalog.to_regclass($1)::oid"
        await con.execute(
            f"UPDATE {self.qualified} SET target_oid = {now} WHERE target_oid = $2", target, old
        )

    async def wrote_letters(
        self, con: PoolConnectionProxy[Any], unit: Unit, target: str, count: int
    ) -> None:
        """Subtract written dead letters from the unit's held ones."""
        await con.execute(
            f"UPDATE {self.qualified} SET letters_held = greatest(letters_held - $5, 0) WHERE "
            f"{_THIS}",
            *_key(unit, target),
            count,
        )

    async def prune(self, con: PoolConnectionProxy[Any], application: str, target: str) -> None:
        """Delete versions beyond the number to keep."""
        kept = (
            f"SELECT DISTINCT version FROM {self.qualified} WHERE application = $1 AND "
            "target = $2 ORDER BY version DESC LIMIT $3"
        )
        await con.execute(
            f"DELETE FROM {self.qualified} WHERE application = $1 AND target = $2 AND version "
            f"< (SELECT min(version) FROM ({kept}) AS kept)",
            application,
            target,
            KEPT_VERSIONS,
        )


def _key(unit: Unit, target: str) -> tuple[str, int, int, str]:
    return unit.application, unit.version, unit.part, target


def _values(unit: Unit, target: str) -> tuple[Any, ...]:
    return *_key(unit, target), unit.parts, unit.rule, unit.types


def _unit(row: Record) -> Unit:
    return Unit(
        **{name: row[name] for name in ("application", "version", "part", "parts", "rule", "types")}
    )


def _counts_of(row: Record) -> Committed:
    return Committed(
        counts=Counts(**{name: row[name] for name in _STORED}), letters_held=row["letters_held"]
    )


async def create_missing(
    con: PoolConnectionProxy[Any], error: Exception, option: str, table: str, statement: str
) -> None:
    """Create the table that `error` reports missing.

    Suspends; ends the open transaction. Raises `ConfigError`, with the statement to run, if the
    role lacks the privilege, and for a table of another shape. Raises `error` in any other case.
    """
    state = sqlstate(error)
    if state in _ANOTHER_TABLE:
        rule = f"is a table of another shape ({error}); name another table"
        raise bad(option, table, rule) from error
    if state != _NO_TABLE:
        raise error
    await con.execute("ROLLBACK")
    await make_table(con, option, table, statement)


async def make_table(
    con: PoolConnectionProxy[Any], option: str, table: str, statement: str
) -> None:
    """Create a table, unless another session creates it meanwhile.

    Raises `ConfigError`, with the statement to run, if the role lacks the privilege.
    """
    try:
        await con.execute(statement)
    except Exception as error:
        state = sqlstate(error)
        if state in _MADE_MEANWHILE:
            return
        if state is not None and state[:2] in {"42", "3F"}:
            rule = f"cannot be created ({error}); have it created with: {statement}"
            raise bad(option, table, rule) from error
        raise
