"""The catalogs' information about the schema. Every role may read them, also on a standby."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..client.names import quoted
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
_TRIGGERS = """
SELECT c.relname || '.' || t.tgname AS name, pg_get_triggerdef(t.oid) AS definition,
  t.tgenabled IN ('O', 'A') AS is_enabled
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = $1::text::regnamespace AND NOT t.tgisinternal
"""
_SEQUENCES = """
SELECT c.relname::text AS name, s.seqcache = 1 AND s.seqincrement = 1 AND NOT s.seqcycle
  AND s.seqmax <= CASE c.relname WHEN 'position' THEN 281474976710655 ELSE s.seqmax END AS fits
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
WHERE c.relnamespace = $1::text::regnamespace
"""
_DEFAULTS = """
SELECT c.relname || '.' || a.attname AS name, pg_get_expr(d.adbin, d.adrelid) AS text
FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
JOIN pg_class c ON c.oid = d.adrelid WHERE c.relnamespace = $1::text::regnamespace
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
class FoundTrigger:
    """A trigger, as in the catalogs."""

    definition: str
    is_enabled: bool
    """Whether it fires in ordinary sessions."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The objects of a schema."""

    objects: frozenset[tuple[str, str]]
    """The objects' kinds and names; the name of a trigger begins with that of its table."""
    bodies: Mapping[str, str]
    """The bodies of functions, by name."""
    public: tuple[str, ...]
    """The functions that every role may execute."""
    triggers: Mapping[str, FoundTrigger]
    sequences: Mapping[str, bool]
    """Whether a sequence counts by 1, without a cache and without a cycle."""
    defaults: Mapping[str, str]
    """The defaults of columns, by table and column."""
    appenders: str | None
    """The definition of the view of marks."""


async def read_catalog(con: AnyConnection, schema: str) -> Catalog:
    """Read the catalogs, in a transaction."""
    name = quoted(schema)
    relations = await con.fetch(_RELATIONS, name)
    functions = await con.fetch(_FUNCTIONS, name)
    constraints = await con.fetch(_CONSTRAINTS, name)
    triggers = await con.fetch(_TRIGGERS, name)
    objects = {(_KINDS.get(row["kind"], "other"), row["name"]) for row in relations}
    objects |= {("function", row["name"]) for row in functions}
    objects |= {("constraint", row["conname"]) for row in constraints}
    objects |= {("trigger", row["name"]) for row in triggers}
    return Catalog(
        objects=frozenset(objects),
        bodies={row["name"]: row["body"] for row in functions},
        public=tuple(sorted(row["name"] for row in functions if row["is_public"])),
        triggers={
            row["name"]: FoundTrigger(row["definition"], row["is_enabled"]) for row in triggers
        },
        sequences={row["name"]: row["fits"] for row in await con.fetch(_SEQUENCES, name)},
        defaults={row["name"]: row["text"] for row in await con.fetch(_DEFAULTS, name)},
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
    """Return the missing grants of these roles, as statements, by role and right.

    The roles must exist.
    """
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
