"""The table in which PostgreSQL keeps which units were committed. A unit's row is written in the transaction of what it stands for.

1. The row comes first, and is unique per (application, version, part). So a second attempt waits in its `INSERT` until the first has ended,
   and then finds either nothing, and goes on, or the row, and writes nothing.
2. The counts come last, with the commit. In between the row is nobody's to see.
3. Parts and rule must be those of the version's other rows. They are compared at both ends, since the rows of attempts that run side by
   side cannot see each other before they commit.
4. Of each application the last `versions` versions are kept. What is older than these is refused: nobody could tell whether it was
   committed. Pruning is no part of any transaction, in which it would hold up other parts.
"""

# ruff: noqa: S608  # the table's own name is the only text that is put into statements, quoted

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._core import checks
from .._core.checks import bad
from .._core.errors import UnitRefused
from .._core.transaction import Committed, Counts, Unit, check_same_parts
from ._postgres_errors import sqlstate
from ._postgres_table import quoted

if TYPE_CHECKING:
    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED; SET CONSTRAINTS ALL IMMEDIATE"
"""Deferred constraints answer at once, as they do at the end of a write that is alone; so the blame falls on a row."""
_COUNTS = ("rows", "delivered", "duplicate", "dead_lettered", "failed")
_NO_TABLE = "42P01"
_MADE_MEANWHILE = frozenset({"23505", "42P07", "42710"})
_ANOTHER_TABLE = frozenset({"42703", "42P10", "42804", "42809"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where the units are kept, and how many of them. Raises `ConfigError`."""

    table: str
    schema: str | None
    versions: int

    def __post_init__(self) -> None:
        checks.text("ledger", self.table)
        if self.schema is not None:
            checks.text("ledger_schema", self.schema)
        checks.count("ledger_versions", self.versions)

    @property
    def qualified(self) -> str:
        """The table's name in statements."""
        return quoted(self.table) if self.schema is None else f"{quoted(self.schema)}.{quoted(self.table)}"

    @property
    def creation(self) -> str:
        """The statement that makes the table."""
        counts = ", ".join(f"{name} bigint NOT NULL DEFAULT 0" for name in (*_COUNTS, "letters_held"))
        return (
            f"CREATE TABLE IF NOT EXISTS {self.qualified} (application text, version bigint, part int, parts int NOT NULL, rule text NOT NULL, "
            f"{counts}, begun_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (application, version, part))"
        )

    async def begin(self, con: PoolConnectionProxy[Any], unit: Unit) -> Committed | None:
        """Begin the unit's transaction; return what an earlier attempt has committed. Suspends while another attempt is under way.

        Makes the table where it is missing. Raises `UnitRefused`, and `ConfigError` where the table cannot be made or is another one.
        """
        try:
            return await self._begin(con, unit)
        except Exception as error:
            if sqlstate(error) in _ANOTHER_TABLE:
                raise bad("ledger", self.qualified, f"is a table of another shape ({error}); name one that is made for it") from error
            if sqlstate(error) != _NO_TABLE:
                raise
        await con.execute("ROLLBACK")
        await self._create(con)
        return await self._begin(con, unit)

    async def _begin(self, con: PoolConnectionProxy[Any], unit: Unit) -> Committed | None:
        await con.execute(BEGIN)
        is_new = await self._insert(con, unit)
        known = await con.fetch(
            f"SELECT * FROM {self.qualified} WHERE application = $1 AND version = $2 AND (part = $3 OR parts <> $4 OR rule <> $5)"
            " ORDER BY part = $3 LIMIT 2",
            *_key(unit),
            unit.parts,
            unit.rule,
        )
        for row in known:
            check_same_parts(unit, _unit(row))
        if not is_new:
            return _committed(known[-1])
        await self._check_kept(con, unit)
        return None

    async def _insert(self, con: PoolConnectionProxy[Any], unit: Unit) -> bool:
        statement = (
            f"INSERT INTO {self.qualified} (application, version, part, parts, rule) VALUES ($1, $2, $3, $4, $5)"
            " ON CONFLICT (application, version, part) DO NOTHING RETURNING true"
        )
        return bool(await con.fetchval(statement, *_key(unit), unit.parts, unit.rule))

    async def _check_kept(self, con: PoolConnectionProxy[Any], unit: Unit) -> None:
        later = f"SELECT count(*) FROM (SELECT DISTINCT version FROM {self.qualified} WHERE application = $1 AND version > $2 LIMIT $3) AS later"
        if await con.fetchval(later, unit.application, unit.version, self.versions) == self.versions:
            raise UnitRefused(
                f"unit={unit.name!r}: the ledger {self.qualified} keeps {self.versions} versions of an application and has that many later ones, "
                "so nobody can tell whether this one was committed; keep more (ledger_versions=), or use a later version"
            )

    async def _create(self, con: PoolConnectionProxy[Any]) -> None:
        try:
            await con.execute(self.creation)
        except Exception as error:
            state = sqlstate(error)
            if state in _MADE_MEANWHILE:
                return
            if state is not None and state[:2] in {"42", "3F"}:
                raise bad("ledger", self.qualified, f"cannot be made ({error}); have it made by: {self.creation}") from error
            raise

    async def complete(self, con: PoolConnectionProxy[Any], unit: Unit, counts: Counts, letters_held: int) -> None:
        """Store the counts; the commit comes next. Raises `UnitRefused` if other parts of the version were committed meanwhile."""
        values = [getattr(counts, name) for name in _COUNTS]
        changes = ", ".join(f"{name} = ${place}" for place, name in enumerate((*_COUNTS, "letters_held"), 6))
        where = "application = $1 AND version = $2"
        await con.execute(
            f"UPDATE {self.qualified} SET {changes} WHERE {where} AND part = $3 AND parts = $4 AND rule = $5",
            *_key(unit),
            unit.parts,
            unit.rule,
            *values,
            letters_held,
        )
        others = f"SELECT * FROM {self.qualified} WHERE {where} AND (parts <> $3 OR rule <> $4) LIMIT 1"
        for row in await con.fetch(others, unit.application, unit.version, unit.parts, unit.rule):
            check_same_parts(unit, _unit(row))

    async def has(self, con: PoolConnectionProxy[Any], unit: Unit) -> bool:
        """Whether the unit is committed; waits for the end of an attempt that is under way."""
        await con.execute(BEGIN)
        is_new = await self._insert(con, unit)
        await con.execute("ROLLBACK")
        return not is_new

    async def wrote_letters(self, con: PoolConnectionProxy[Any], unit: Unit, count: int) -> None:
        """So many of the unit's dead letters fewer are held."""
        where = "application = $1 AND version = $2 AND part = $3"
        await con.execute(
            f"UPDATE {self.qualified} SET letters_held = greatest(letters_held - $4, 0) WHERE {where}",
            *_key(unit),
            count,
        )

    async def prune(self, con: PoolConnectionProxy[Any], application: str) -> None:
        """Forget what is older than the versions that are kept."""
        kept = f"SELECT DISTINCT version FROM {self.qualified} WHERE application = $1 ORDER BY version DESC LIMIT $2"
        await con.execute(
            f"DELETE FROM {self.qualified} WHERE application = $1 AND version < (SELECT min(version) FROM ({kept}) AS kept)",
            application,
            self.versions,
        )


def _key(unit: Unit) -> tuple[str, int, int]:
    return unit.application, unit.version, unit.part


def _unit(row: Record) -> Unit:
    return Unit(application=row["application"], version=row["version"], part=row["part"], parts=row["parts"], rule=row["rule"])


def _committed(row: Record) -> Committed:
    return Committed(counts=Counts(**{name: row[name] for name in _COUNTS}), letters_held=row["letters_held"])
