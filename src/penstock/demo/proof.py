"""Proof by SQL that every flight is in the table exactly once, as it was in the file.

The server writes the table back as the text of a CSV, sorted by line, and the digest of that text
is compared with the digest of the file's own. So the comparison shares no code with what read the
file and wrote the rows, and sees a row too many, too few or changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

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
    """What the file holds: its lines without the header, and their digest; and how many spoiled
    flights were sent besides.
    """

    rows: int
    digest: str
    spoiled: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: what was looked at, what was expected, what is there."""

    what: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether they are the same."""
        return self.expected == self.found

    def __str__(self) -> str:
        return (
            f"ok   {self.what}: {self.found}"
            if self.holds
            else f"BAD  {self.what}: {self.found}, expected {self.expected}"
        )


async def create_table(dsn: str, schema: str) -> None:
    """Make an empty table of flights, and one of dead letters, in a schema of their own; what an
    earlier run left there goes.
    """
    columns = ", ".join(f"{column.name} {column.sql}" for column in COLUMNS)
    connection = await _connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(
                f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}"
            )
            await connection.execute(
                f"CREATE TABLE {schema}.flights (line bigint PRIMARY KEY CHECK (line > 0), "
                f"{columns})"
            )
            await connection.execute(f"CREATE TABLE {schema}.dead_letters ({DEAD_LETTERS})")
    finally:
        connection.terminate()


async def prove(dsn: str, schema: str, expected: Expected) -> list[Finding]:
    """Compare the table with the file, over a connection of its own. Suspends while the server
    reads the table twice.
    """
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
