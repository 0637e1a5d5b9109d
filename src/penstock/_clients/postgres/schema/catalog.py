"""What the catalogs tell about a log's schema. Every role may read them, on a standby too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..names import quoted
from .rights import GRANTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .opened import AnyConnection
    from .rights import Grant, Rights, Roles

_RELATIONS = """
SELECT c.relname::text AS name, c.relkind::text AS kind FROM pg_class c
WHERE c.relnamespace = $1::text::regnamespace
"""
_KINDS = {"r": "table", "p": "table", "v": "view", "S": "sequence", "i": "index", "I": "index"}
_CONSTRAINTS = """
SELECT conname::text FROM pg_constraint
WHERE connamespace = $1::text::regnamespace AND contype IN ('p', 'u') AND convalidated
"""
_FUNCTIONS = """
SELECT proname::text AS name, prosrc AS body, has_function_privilege('public', oid, 'EXECUTE')
  AS is_public FROM pg_proc WHERE pronamespace = $1::text::regnamespace
"""
_SEQUENCE = """
SELECT seqcache = 1 AND seqincrement = 1 AND NOT seqcycle AND seqmax <= 281474976710655
FROM pg_sequence WHERE seqrelid = to_regclass($1::text)
"""
_DEFAULT = """
SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a
JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = to_regclass($1::text) AND a.attname = 'position'
"""
_VIEW = "SELECT pg_get_viewdef(to_regclass($1::text))"
_LACKING = """
SELECT w.place FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
  WITH ORDINALITY AS w (role, kind, name, privilege, col, place)
LEFT JOIN pg_class c ON c.relnamespace = $1::text::regnamespace AND c.relname = w.name
LEFT JOIN pg_proc p ON p.pronamespace = $1::text::regnamespace AND p.proname = w.name
WHERE NOT coalesce(CASE w.kind
  WHEN 'SCHEMA' THEN has_schema_privilege(w.role, $1::text::regnamespace, w.privilege)
  WHEN 'SEQUENCE' THEN has_sequence_privilege(w.role, c.oid, w.privilege)
  WHEN 'FUNCTION' THEN has_function_privilege(w.role, p.oid, w.privilege)
  ELSE CASE WHEN w.col = '' THEN has_table_privilege(w.role, c.oid, w.privilege)
    ELSE has_column_privilege(w.role, c.oid, w.col, w.privilege) END
END, true) ORDER BY w.place
"""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The objects of a schema."""

    objects: frozenset[tuple[str, str]]
    """Their kinds and names."""
    bodies: Mapping[str, str]
    """The bodies of functions, by name."""
    public: tuple[str, ...]
    """The functions that every role may execute."""
    sequence_fits: bool | None
    default: str | None
    """The default of a message's position."""
    appenders: str | None
    """The definition of the view of marks."""


async def read_catalog(con: AnyConnection, schema: str) -> Catalog:
    """Read the catalogs, in a transaction."""
    name = quoted(schema)
    relations = await con.fetch(_RELATIONS, name)
    functions = await con.fetch(_FUNCTIONS, name)
    constraints = await con.fetch(_CONSTRAINTS, name)
    objects = {(_KINDS.get(row["kind"], "other"), row["name"]) for row in relations}
    objects |= {("function", row["name"]) for row in functions}
    objects |= {("constraint", row["conname"]) for row in constraints}
    return Catalog(
        objects=frozenset(objects),
        bodies={row["name"]: row["body"] for row in functions},
        public=tuple(sorted(row["name"] for row in functions if row["is_public"])),
        sequence_fits=await con.fetchval(_SEQUENCE, f"{name}.position"),
        default=await con.fetchval(_DEFAULT, f"{name}.message"),
        appenders=await con.fetchval(_VIEW, f"{name}.appender"),
    )


class _Wanted(NamedTuple):
    """One privilege that a role needs."""

    role: str
    right: Rights
    grant: Grant
    privilege: str
    column: str


async def lacking(
    con: AnyConnection, schema: str, roles: Roles
) -> dict[tuple[str, Rights], list[str]]:
    """The grants that these roles, which must exist, lack, as statements, by role and right."""
    wanted = [*_wanted(roles)]
    rows = await con.fetch(
        _LACKING,
        quoted(schema),
        [each.role for each in wanted],
        [each.grant.kind for each in wanted],
        [each.grant.name for each in wanted],
        [each.privilege for each in wanted],
        [each.column for each in wanted],
    )
    found: dict[tuple[str, Rights], dict[str, None]] = {}
    for row in rows:
        place: int = row["place"]
        each = wanted[place - 1]
        found.setdefault((each.role, each.right), {})[each.grant.sql(schema, each.role)] = None
    return {key: [*statements] for key, statements in found.items()}


def _wanted(roles: Roles) -> Iterator[_Wanted]:
    for right, names in roles.items():
        for role in names:
            for grant in GRANTS[right]:
                for privilege in grant.privileges:
                    for column in grant.columns or ("",):
                        yield _Wanted(role, right, grant, privilege, column)
