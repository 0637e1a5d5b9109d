"""Preparation of a table for dead letters: creation of the table or of missing columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...letters.store import StoreError
from ..client.names import qualified
from ..client.types import identity
from .connection import LetterConnection
from .table import FoundColumn, additions, creation, differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..client.access import PostgresAccess

_FIND = """
SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, c.relkind::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)
"""
_DESCRIBE = f"""
SELECT attname::text AS name, CASE atttypmod WHEN -1 THEN {identity("atttypid")}
    ELSE format_type(atttypid, atttypmod) END AS type, attnotnull AS is_required,
    atthasdef OR attidentity <> '' AS fills_itself
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_HAS_UNIQUE_KEY = """
SELECT EXISTS (
    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = $1 AND a.attname = 'key' AND i.indnkeyatts = 1 AND i.indisunique
        AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
) AS it
"""
_LIMIT_WAIT = """
SELECT set_config('lock_timeout', '5s', true) WHERE current_setting('lock_timeout') = '0'
"""
"""If a long transaction uses the table, every writer would queue behind this lock request."""
_TABLES = ("r", "p")  # ordinary and partitioned ones


@dataclass(frozen=True, slots=True)
class Prepared:
    """The table, and the statements that prepare it; no statements if the table is ready."""

    table: str
    is_new: bool
    statements: Sequence[str]
    columns: Sequence[str] = ()
    """The missing columns."""


async def prepare(
    dsn: str | PostgresAccess, table: str, schema: str | None, *, dry_run: bool = False
) -> Prepared:
    """Create the table of dead letters, or add missing columns that are nullable or have a
    default.

    Letters and other columns are kept. Concurrent calls wait for each other, and the changes are
    atomic. Raises `StoreError`, also for a table that is not one of dead letters, which stays
    unchanged.
    """
    name = qualified(schema, table)
    connection = LetterConnection(dsn)
    await connection.open()
    try:
        async with connection.transaction():
            await connection.ask(
                name, "SELECT pg_advisory_xact_lock(hashtext('sluicegate dlq init'))"
            )
            prepared = await _planned(connection, name)
            if not dry_run:
                await connection.ask(name, _LIMIT_WAIT)
                for statement in prepared.statements:
                    await connection.ask(prepared.table, statement)
                (made,) = await connection.ask(name, _FIND, name)
                prepared = replace(prepared, table=made["name"])
    finally:
        await connection.close()
    return prepared


async def _planned(connection: LetterConnection, name: str) -> Prepared:
    found = await connection.ask(name, _FIND, name)
    if not found:
        return Prepared(name, True, [creation(name)])
    table: str = found[0]["name"]
    if found[0]["relkind"] not in _TABLES:
        raise _refused(table, ["it is not a table"])
    oid = found[0]["oid"]
    columns = [FoundColumn(**row) for row in await connection.ask(table, _DESCRIBE, oid)]
    (has,) = await connection.ask(table, _HAS_UNIQUE_KEY, oid)
    wrong = differences(columns, has_unique_key=has["it"])
    if wrong:
        raise _refused(table, wrong)
    missing = additions(columns)
    statements = [f"ALTER TABLE {table} ADD COLUMN {column.definition}" for column in missing]
    return Prepared(table, False, statements, [column.name for column in missing])


def _refused(table: str, wrong: Sequence[str]) -> StoreError:
    return StoreError(
        f"{table} exists, but is not a table of dead letters, and stays unchanged: {'; '.join(wrong)}. "
        "Choose another --table, or correct this one"
    )
