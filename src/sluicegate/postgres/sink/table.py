"""The facts of the target table, read when the sink is opened."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..._core.checks import bad
from ..client.names import qualified
from ..client.types import TYPES, PostgresType, identity, types_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg.pool import PoolConnectionProxy

SHOWN = 20
"""Maximum number of table names listed in an error."""
READ = 1000
"""Maximum number of names searched for similar ones."""

_READ = (114, 3802, 142, 4072)
"""The OIDs of json, jsonb, xml and jsonpath, the same on every server."""
_TEXTS = (25, 1043)
"""The OIDs of text and varchar."""
_TABLE = """SELECT c.oid, c.relname, n.nspname,
           c.relkind <> 'v' AND NOT pg_catalog.row_security_active(c.oid) AND NOT (c.relhasrules AND EXISTS (
               SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type = '3')) AS takes_copy,
           c.relkind <> 'v' AND c.relhasrules AND EXISTS (
               SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type IN ('2', '3')) AS has_rules,
           c.relkind = 'r' AND NOT c.relhasrules AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND t.tgtype & 7 = 7) AS is_plain
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass($1) AND c.relkind IN ('r', 'p', 'v', 'f')
"""
_TABLES = """SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'f') AND n.nspname = COALESCE($1, current_schema()) ORDER BY 1 LIMIT $2
"""
_SCHEMAS = (
    "SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname !~ '^pg_(toast|temp)' ORDER BY 1"
)
_COLUMNS = f"""SELECT a.attname AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS exact, base.loose, base.identity, base.oid, base.is_read,
           base.is_enum, base.is_nested, a.attnotnull AS not_null,
           a.attgenerated <> '' OR a.attidentity = 'a' AS generated, a.atthasdef OR a.attidentity <> '' AS has_default,
           a.atttypid || ',' || a.atttypmod || ',' || a.attnotnull || ',' || a.attcollation AS mark,
           CASE WHEN base.has_parts THEN a.atttypid::pg_catalog.int8 END AS kind,
           CASE WHEN a.attcollation NOT IN (0, 100) THEN (SELECT quote_ident(n.nspname) || '.' || quote_ident(c.collname)
               FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation) END AS collated_by,
           base.is_text AND pg_catalog.getdatabaseencoding() = 'UTF8' AND EXISTS (
               SELECT FROM pg_catalog.pg_collation c WHERE c.oid = a.attcollation AND c.collisdeterministic) AS is_bytewise,
           a.attidentity <> '' OR EXISTS (SELECT FROM pg_catalog.pg_attrdef v
               JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = v.oid
                   AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
               JOIN pg_catalog.pg_class c ON c.oid = d.refobjid AND c.relkind = 'S'
               WHERE v.adrelid = a.attrelid AND v.adnum = a.attnum) AS is_numbered
    FROM pg_catalog.pg_attribute a, LATERAL (
        WITH RECURSIVE down(oid) AS (
            SELECT a.atttypid
            UNION ALL SELECT t.typbasetype FROM down JOIN pg_catalog.pg_type t ON t.oid = down.oid WHERE t.typtype = 'd'
        )
        SELECT pg_catalog.format_type(t.oid, -1) AS loose, {identity("t.oid")} AS identity, t.oid::pg_catalog.int8 AS oid, t.typtype = 'e' AS is_enum, t.typcategory IN ('A', 'C', 'G', 'R') AS is_nested,
               t.typcategory IN ('A', 'C', 'R') AS has_parts,
               t.oid IN ({", ".join(map(str, _READ))}) AS is_read,
               t.oid IN ({", ".join(map(str, _TEXTS))}) AS is_text
        FROM down JOIN pg_catalog.pg_type t ON t.oid = down.oid WHERE t.typtype <> 'd'
    ) base
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""  # noqa: S608  # text of this package
_KEYS = """SELECT array_agg(a.attname::text ORDER BY k.place) AS names
    FROM pg_catalog.pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place), pg_catalog.pg_attribute a
    WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
      AND k.place <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.attnum
    GROUP BY i.indexrelid, i.indisprimary ORDER BY i.indisprimary DESC, i.indexrelid
"""
_TYPES = TYPES.format(table="$1")
_TYPES_BY_NAME = TYPES.format(table="pg_catalog.to_regclass($1)")

_MARKS = """WITH opened AS MATERIALIZED (SELECT pg_catalog.pg_relation_size(pg_catalog.to_regclass($1)) AS size)
    SELECT (SELECT pg_catalog.array_agg(a.attname::text || ' ' || a.atttypid || ',' || a.atttypmod || ',' || a.attnotnull || ',' || a.attcollation)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped) AS marks,
        pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp() > interval '1 ms' AS has_waited
    FROM opened WHERE size IS DISTINCT FROM -1
"""
"""Reading the size takes a lock on the table, which requires no privilege. It waits for the end of
an `ALTER`, but the marks come from an earlier snapshot and do not show it: after a wait they are
read again.
"""


_SPELLED_ONCE = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "boolean",
        "bytea",
        "date",
        "timestamp with time zone",
        "timestamp without time zone",
        "uuid",
    }
)
"""Types of which equal values are identical, besides text."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table."""

    name: str
    exact: str
    """The declared type, as SQL."""
    loose: str
    """The base type without length, precision or domain, as SQL; accepts every value sent for the
    column.
    """
    identity: str
    """The identity of the base type, whatever the session's settings."""
    oid: int
    """The OID of the base type."""
    is_read: bool
    """Only the server can parse its values, from text: JSON, XML, JSON paths."""
    is_enum: bool
    is_nested: bool
    """Its values may be lists, which `unnest` would split."""
    not_null: bool
    generated: bool
    mark: str
    """Changes with the column's type, the type's length, its nullability, or its collation."""
    kind: PostgresType | None = None
    """The type, if it contains others."""
    collated_by: str | None = None
    """The collation as SQL; `None` if it is the database's, or if there is none."""
    is_bytewise: bool = False
    """Whether its values are text that is equal only if its bytes are: UTF-8 with a deterministic
    collation.
    """
    is_numbered: bool = False
    """Whether a row without a value takes the next number of a sequence."""
    has_default: bool = False
    """Whether the server gives a value to a row without one."""

    as_text: str = ""
    """`text`, or `text[]` for an array, if the driver cannot send its values in binary form."""

    @property
    def plain_type(self) -> str:
        """The identity of the type if it has no length, precision or domain; otherwise empty."""
        return self.identity if self.exact == self.loose else ""

    @property
    def is_spelled_once(self) -> bool:
        """Whether equal values are identical, unlike 1.0 and 1.00."""
        return self.is_bytewise or self.plain_type in _SPELLED_ONCE

    @property
    def sent_as(self) -> str:
        """The identity of the type whose binary form the values have when they are sent."""
        return self.as_text or ("text" if self.is_enum else self.identity)

    @property
    def given(self) -> str:
        """The type of parameters and arrays for the column, as SQL."""
        return f"pg_catalog.{self.as_text}" if self.as_text else self.loose

    def typed(self, value: str) -> str:
        """SQL for a value of type `given` as one of the base type.

        A cast to a declared length would truncate the value silently; the insertion refuses it.
        """
        return f"{value}::{self.loose}" if self.as_text else value

    def equal(self, one: str, other: str) -> str:
        """SQL for the equality of two values of the declared type; there is none for a domain over
        an enum.
        """
        to = f"::{self.loose}" if self.is_enum and not self.plain_type else ""
        return f"{one}{to} = {other}{to}"

    @property
    def element(self) -> str | None:
        """The base type of an array's elements, unless these contain other types."""
        return None if self.kind is None else self.kind.element


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its names, its columns, and its unique keys, the primary key first.

    Only keys that `ON CONFLICT` can use are included: immediate, without predicate, on plain
    columns.
    """

    name: str
    schema: str
    columns: tuple[TableColumn, ...]
    keys: tuple[tuple[str, ...], ...]
    takes_copy: bool = True
    """Whether `COPY` can write into it: not if it is a view or has row-level security, or if it has
    a rule for insertions, which `COPY` would ignore.
    """
    is_plain: bool = True
    """Whether each inserted row is stored or refused: no trigger or rule can suppress it."""
    has_rules: bool = False
    """Whether a rule rewrites insertions or updates, so that the server handles no conflicts."""

    @property
    def qualified(self) -> str:
        """The quoted path."""
        return qualified(self.schema, self.name)

    def column(self, name: str) -> TableColumn:
        """The column with this name."""
        return next(column for column in self.columns if column.name == name)

    def key_within(self, columns: Iterable[str]) -> tuple[str, ...] | None:
        """A unique key within `columns`, preferably one that cannot contain NULL; `None` if there
        is none.
        """
        given = set(columns)
        within = [key for key in self.keys if given.issuperset(key)]
        solid = [key for key in within if all(self.column(name).not_null for name in key)]
        return next(iter(solid or within), None)


async def read_table(
    con: PoolConnectionProxy[Any], table: str, schema: str | None, columns: Sequence[str]
) -> Table:
    """Read the table's facts; suspends for a few round trips.

    Raises `ConfigError` for a missing table or column, naming the existing ones.
    """
    read = await find_table(con, table, schema)
    if read is None:
        raise await missing_table(con, table, schema)
    check_columns(read, columns)
    return read


async def find_table(con: PoolConnectionProxy[Any], table: str, schema: str | None) -> Table | None:
    """Read the table's facts; `None` if there is no table. Suspends for a few round trips."""
    found = await con.fetchrow(_TABLE, qualified(schema, table))
    if found is None:
        return None
    keys = await con.fetch(_KEYS, found["oid"])
    return Table(
        found["relname"],
        found["nspname"],
        await _columns(con, found["oid"]),
        tuple(tuple(key["names"]) for key in keys),
        found["takes_copy"],
        found["is_plain"],
        found["has_rules"],
    )


async def _columns(con: PoolConnectionProxy[Any], table: int) -> tuple[TableColumn, ...]:
    rows = await con.fetch(_COLUMNS, table)
    has_parts = any(row["kind"] is not None for row in rows)
    kinds = types_of(await con.fetch(_TYPES, table)) if has_parts else {}
    return tuple(replace(TableColumn(**row), kind=kinds.get(row["kind"])) for row in rows)


async def is_current(con: PoolConnectionProxy[Any], table: Table, columns: Sequence[str]) -> bool:
    """Whether the columns still have the types and the nullability that were read.

    Suspends for a round trip, or two if a type contains others, and until another session that alters the table has ended. A missing
    table or column counts as unchanged: the write itself raises the server's error.
    """
    while True:
        found = await con.fetchrow(_MARKS, table.qualified)
        assert found is not None
        if not found["has_waited"]:
            break
    marks = dict(each.rsplit(" ", 1) for each in found["marks"] or ())
    known = [table.column(name) for name in columns]
    if any(marks.get(column.name, column.mark) != column.mark for column in known):
        return False
    kinds = {column.kind for column in known if column.kind is not None}
    if not kinds or not marks:
        return True
    return kinds <= {*types_of(await con.fetch(_TYPES_BY_NAME, table.qualified)).values()}


async def missing_table(con: PoolConnectionProxy[Any], table: str, schema: str | None) -> Exception:
    """The `ConfigError` for a table that does not exist, naming the existing ones. Suspends."""
    if schema is not None:
        schemas = [row[0] for row in await con.fetch(_SCHEMAS)]
        if schema not in schemas:
            return bad("schema", schema, "there is no such schema; there are " + _listed(schemas))
    there = _nearest_first(table, [row[0] for row in await con.fetch(_TABLES, schema, READ)])
    hint = (
        f" (for a table in another schema pass schema={table.partition('.')[0]!r})"
        if "." in table and schema is None
        else ""
    )
    return bad("table", table, f"there is no such table{hint}; there are {_listed(there)}")


def check_columns(table: Table, columns: Sequence[str]) -> None:
    """Raise `ConfigError` unless the table has these columns, and a row may have values for them."""
    names = [column.name for column in table.columns]
    missing = [name for name in columns if name not in names]
    if missing:
        rule = f"{table.qualified} has no such column; it has {_listed(names)}"
        raise bad("columns", missing, rule)
    generated = [name for name in columns if table.column(name).generated]
    if generated:
        raise bad("columns", generated, "the server computes these columns; omit them")


def _nearest_first(name: str, names: Sequence[str]) -> list[str]:
    """The names most similar to `name`, then the others in their order."""
    meant = difflib.get_close_matches(name, names, n=3)
    return [*meant, *(other for other in names if other not in meant)]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN])) or "none"
    return shown + (", ..." if len(names) > SHOWN else "")
