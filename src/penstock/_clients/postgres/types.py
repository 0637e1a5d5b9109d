"""Types of PostgreSQL that contain others: arrays, composites, ranges.

A domain is the type that it is over, in any depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TYPES = """WITH RECURSIVE reached(oid) AS (
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped
        UNION
        SELECT part.oid FROM reached JOIN pg_catalog.pg_type t ON t.oid = reached.oid, LATERAL (
            SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL SELECT t.typelem WHERE t.typelem <> 0 AND t.typcategory = 'A'
            UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
            UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r
            WHERE t.typtype = 'm' AND (pg_catalog.to_jsonb(r)->>'rngmultitypid')::oid = t.oid
        ) part(oid)
    )
    SELECT t.oid::int8 AS oid, pg_catalog.format_type(t.oid, -1) AS name, CASE
            WHEN t.typtype <> 'b' THEN t.typtype::text
            WHEN t.typelem <> 0 AND t.typcategory = 'A' THEN 'a' ELSE 'b' END AS kind,
        CASE t.typtype WHEN 'd' THEN ARRAY[t.typbasetype::int8]
            WHEN 'b' THEN ARRAY[t.typelem::int8]
            WHEN 'r' THEN ARRAY(SELECT r.rngsubtype::int8 FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid)
            WHEN 'm' THEN ARRAY(SELECT r.rngtypid::int8 FROM pg_catalog.pg_range r
                WHERE (pg_catalog.to_jsonb(r)->>'rngmultitypid')::oid = t.oid)
            ELSE ARRAY(SELECT a.atttypid::int8 FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid
                AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) END AS parts,
        ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE t.typtype = 'c' AND a.attrelid = t.typrelid
            AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS fields
    FROM reached JOIN pg_catalog.pg_type t ON t.oid = reached.oid
"""
"""The types of a table's columns and all types that they contain, by `{table}`, its oid.

Before version 14 there are no multiranges, and no column `rngmultitypid`.
"""


@dataclass(frozen=True, slots=True)
class PostgresType:
    """A type, without domains."""

    name: str
    kind: str
    """`a`: array, `c`: composite, `r`: range, `m`: multirange; others contain no types."""
    parts: tuple[PostgresType, ...] = ()
    fields: tuple[str, ...] = ()
    """The names of a composite's parts."""

    @property
    def element(self) -> str | None:
        """The name of the type of an array's elements, if these contain no other types."""
        return self.parts[0].name if self.kind == "a" and not self.parts[0].parts else None


def types_of(rows: Iterable[Mapping[str, Any]]) -> dict[int, PostgresType]:
    """The types by their oid, from the rows of `TYPES`."""
    found = {row["oid"]: row for row in rows}

    def made(oid: int) -> PostgresType:
        row = found[oid]
        if row["kind"] == "d":
            return made(row["parts"][0])
        parts = row["parts"] if row["kind"] in "acrm" else ()
        return PostgresType(row["name"], row["kind"], tuple(map(made, parts)), tuple(row["fields"]))

    return {oid: made(oid) for oid in found}
