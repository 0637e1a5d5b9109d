"""The table in which PostgreSQL stores how far incremental runs have read their sources.

1. There is one row per application, target, source and position: one position for a column, one for
   each file of a list.
2. At atomic delivery the rows are replaced in the transaction that publishes the run; otherwise
   after the run.
3. A row names the oid of the table that has the rows read before. A recreated table of this name
   does not have them, so it is refused. To begin again, its rows get the name of no source, and keep
   the version: a run under an earlier one would be found in the ledger as committed.
"""

# ruff: noqa: S608  # the table's own name is the only text that is put into statements, quoted

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.checks import bad, known_format
from ..._core.staging import Progress
from ..client.errors import sqlstate
from ..client.names import creation, literal, qualified
from .ledger import create_missing

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

_TABLE = "sluicegate_progress"
_KEY = ("application", "target", "source", "position")
_COLUMNS = {
    **dict.fromkeys(_KEY, "text"),
    "target_oid": "oid NOT NULL",
    "version": "bigint NOT NULL",
    "updated_at": "timestamptz NOT NULL DEFAULT now()",
}
_NO_TABLE = "42P01"


class ProgressTable:
    """The progress of the runs that write to one target, in the schema of the target or ledger."""

    def __init__(self, schema: str, target: str) -> None:
        self._path = qualified(schema, _TABLE)
        self._target = target

    async def read(self, con: PoolConnectionProxy[Any], application: str) -> Progress:
        """Return the progress. Raises `ConfigError` if it belongs to a dropped table.

        Suspends.
        """
        try:
            rows = await con.fetch(
                "SELECT source, position, version, format, target_oid, to_regclass($2)::oid AS oid_now "
                f"FROM {self._path} WHERE application = $1 AND target = $2 ORDER BY position",
                application,
                self._target,
            )
        except Exception as error:
            if sqlstate(error) != _NO_TABLE:
                raise
            rows = []
        positions: dict[str, tuple[str, ...]] = {}
        for row in rows:
            known_format("progress", self._path, row["format"])
            if row["target_oid"] != row["oid_now"]:
                where = f"application = {literal(application)} AND target = {literal(self._target)}"
                change = f"UPDATE {self._path} SET target_oid = {row['oid_now']}"
                rule = (
                    f"its position belongs to an earlier table {self._target}, so the rows before it "
                    f"may not be in this one. To read from the beginning: {change}, "
                    f"source = 'before ' || source WHERE {where}; or to continue: {change} "
                    f"WHERE {where};"
                )
                raise bad("app_id", application, rule)
            positions[row["source"]] = (*positions.get(row["source"], ()), row["position"])
        version = max((row["version"] for row in rows), default=0)
        return Progress(application=application, version=version, positions=positions)

    async def make(self, con: PoolConnectionProxy[Any]) -> None:
        """Create the table, unless it exists. Suspends; in no transaction."""
        try:
            await con.execute(f"SELECT FROM {self._path} LIMIT 0")
        except Exception as error:
            table = creation(self._path, _COLUMNS, _KEY)
            await create_missing(con, error, "ledger", self._path, table)

    async def store(self, con: PoolConnectionProxy[Any], progress: Progress) -> None:
        """Replace the progress; `make` was called before. Suspends."""
        pairs = [(name, each) for name, several in progress.positions.items() for each in several]
        given = (
            progress.application,
            self._target,
            [source for source, _ in pairs],
            [position for _, position in pairs],
            progress.version,
        )
        await con.execute(
            f"WITH given AS (SELECT * FROM unnest($3::text[], $4::text[]) AS g(source, position)), "
            f"gone AS (DELETE FROM {self._path} p WHERE application = $1 AND target = $2 AND NOT "
            "EXISTS (SELECT FROM given g WHERE (g.source, g.position) = (p.source, p.position))) "
            f"INSERT INTO {self._path} AS p ({', '.join(_KEY)}, target_oid, version) "
            "SELECT $1, $2, source, position, to_regclass($2)::oid, $5 FROM given "
            f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET version = $5, updated_at = now(), "
            "target_oid = excluded.target_oid WHERE p.version < $5",
            *given,
        )
