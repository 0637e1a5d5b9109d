"""Proof by SQL that every flight is in the table exactly once, as it was in the file.

The server exports the table as CSV, sorted by line, and the digest of that text is compared with
the digest of the file. So the comparison shares no code with the reader and the writer, and detects
extra, missing and changed rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from sluicegate import ConfigError

from .flights import COLUMNS, MISSING

if TYPE_CHECKING:
    from asyncpg import Connection, Record

CONNECT_SECONDS = 10.0
DEAD_LETTERS = (
    "key text PRIMARY KEY, line bigint NOT NULL, why text NOT NULL, error text NOT "
    "NULL, attempts integer NOT NULL"
)
_AS_IN_THE_FILE = {
    "timestamptz": "to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
}


@dataclass(frozen=True, slots=True)
class Expected:
    """Number and digest of the file's lines without the header; number of spoiled flights."""

    rows: int
    digest: str
    spoiled: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison of an expected with a found value."""

    what: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether both are equal."""
        return self.expected == self.found

    def __str__(self) -> str:
        return (
            f"ok   {self.what}: {self.found}"
            if self.holds
            else f"BAD  {self.what}: {self.found}, expected {self.expected}"
        )


_MARK = "created by sluicegate demo"
_MARK_OF = "SELECT COALESCE(obj_description(oid), '') FROM pg_namespace WHERE nspname = $1"


async def create_table(dsn: str, schema: str) -> None:
    """Create empty tables of flights and dead letters in a new schema, replacing that of an earlier
    demo. Raises `ConfigError` if the schema has another origin.
    """
    columns = ", ".join(f"{column.name} {column.sql}" for column in COLUMNS)
    connection = await _connect(dsn)
    try:
        async with connection.transaction():
            await replace_schema(connection, schema)
            await connection.execute(
                f"CREATE TABLE {schema}.flights (line bigint PRIMARY KEY CHECK (line > 0), "
                f"{columns})"
            )
            await connection.execute(f"CREATE TABLE {schema}.dead_letters ({DEAD_LETTERS})")
    finally:
        connection.terminate()


async def replace_schema(connection: Connection[Record], schema: str) -> None:
    """Create an empty schema, replacing that of an earlier demo, in the transaction of
    `connection`. Raises `ConfigError` if the schema has another origin.
    """
    mark = await connection.fetchval(_MARK_OF, schema)
    if mark not in {None, _MARK}:
        raise ConfigError(
            f"the schema {schema} exists, and was not created by this demo, so it is "
            "not replaced: rename it, or name another database"
        )
    await connection.execute(
        f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}; "
        f"COMMENT ON SCHEMA {schema} IS '{_MARK}'"
    )


async def prove(dsn: str, schema: str, expected: Expected) -> list[Finding]:
    """Compare the table with the file, over a separate connection."""
    connection = await _connect(dsn)
    try:
        query = f"SELECT count(*), count(DISTINCT line), min(line), max(line) FROM {schema}.flights"
        count, lines, first, last = await connection.fetchrow(query) or (None,) * 4
        digest = await _digest(connection, schema)
        query = (
            "SELECT count(*), count(DISTINCT line), count(*) FILTER (WHERE line < 0 AND "
            f"why = 'permanent') FROM {schema}.dead_letters"
        )
        letters = await connection.fetchrow(query) or (None,) * 3
    finally:
        connection.terminate()
    return [
        Finding("rows in the table", expected.rows, count),
        Finding("distinct lines", expected.rows, lines),
        Finding("first line", 1, first),
        Finding("last line", expected.rows, last),
        Finding(
            "spoiled flights in the dead letters: rows, distinct, refused for good",
            (expected.spoiled,) * 3,
            tuple(letters),
        ),
        Finding("SHA-256 of the table as CSV, and of the file", expected.digest, digest),
    ]


async def _connect(dsn: str) -> Connection[Record]:
    return await asyncpg.connect(dsn, timeout=CONNECT_SECONDS)


async def _digest(connection: Connection[Record], schema: str) -> str:
    columns = ", ".join(
        _AS_IN_THE_FILE.get(column.sql, "{0}").format(column.name) for column in COLUMNS
    )
    digest = hashlib.sha256()

    async def take(text: bytes) -> None:
        digest.update(text)

    query = f"SELECT {columns} FROM {schema}.flights ORDER BY line"
    await connection.copy_from_query(query, output=take, format="csv", null=MISSING)
    return digest.hexdigest()
