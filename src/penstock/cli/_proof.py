"""Proof by SQL that every flight is in the table exactly once, as it was in the file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

from ._flights import COLUMNS, NAMES

if TYPE_CHECKING:
    from ._flights import Flight


@dataclass(slots=True)
class Expected:
    """What the file holds."""

    rows: int = 0
    digest: int = 0

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        self.rows += 1
        self.digest = (self.digest + fingerprint(flight)) % 2**64


def fingerprint(flight: Flight) -> int:
    """A number for one row; their sum does not depend on the order of rows, and notices a row too many, too few or changed."""
    return int.from_bytes(hashlib.blake2b(repr(tuple(flight)).encode(), digest_size=8).digest(), "big")


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


async def create_table(dsn: str, schema: str) -> None:
    """Make an empty table of flights in a schema of its own; what an earlier run left there goes."""
    columns = ", ".join(f"{column.name} {column.sql}" for column in COLUMNS)
    connection: Any = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")
        await connection.execute(f"CREATE TABLE {schema}.flights (line bigint PRIMARY KEY, {columns})")
    finally:
        await connection.close()


async def prove(dsn: str, schema: str, expected: Expected) -> list[Finding]:
    """Compare the table with the file, over a connection of its own. Suspends while the server reads the table once."""
    connection: Any = await asyncpg.connect(dsn)
    try:
        count, lines, least, most = await connection.fetchrow(
            f"SELECT count(*), count(DISTINCT line), min(line), max(line) FROM {schema}.flights"
        )
        digest = 0
        async with connection.transaction():
            async for row in connection.cursor(f"SELECT {', '.join(NAMES)} FROM {schema}.flights", prefetch=5000):
                digest = (digest + fingerprint(tuple(row))) % 2**64
    finally:
        await connection.close()
    return [
        Finding("rows in the table", expected.rows, count),
        Finding("different lines", expected.rows, lines),
        Finding("first line", 1 if expected.rows else None, least),
        Finding("last line", expected.rows or None, most),
        Finding("checksum of all columns", f"{expected.digest:016x}", f"{digest:016x}"),
    ]
