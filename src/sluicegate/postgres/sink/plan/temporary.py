"""Temporary tables for staged rows. Their names and columns cannot clash with the user's."""

from __future__ import annotations

EXACT = "sluicegate_exact"
LOOSE = "sluicegate_loose"
VERDICT = "sluicegate_verdict"
RETURNED = "sluicegate_returned"
SCHEMA = "pg_temp"


def staging_table(name: str, types: list[str], *, again: bool) -> str:
    """Create a staging table: `o` is the place of the row, `c0`, `c1`, ... are its values."""
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(types))
    return temporary(name, f"(o int4, {columns})", again=again)


def temporary(name: str, columns: str = "", *, query: str = "", again: bool) -> str:
    """Create an empty table that lasts until the transaction ends.

    Created once per transaction: a dropped one would keep its locks.
    """
    made = f"{name}{columns} ON COMMIT DROP {query}"
    return (
        f"CREATE TEMP TABLE IF NOT EXISTS {made}; TRUNCATE {SCHEMA}.{name}"
        if again
        else f"CREATE TEMP TABLE {made}"
    )
