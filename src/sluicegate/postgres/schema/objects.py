"""The objects of the schema, read from the migrations, and compared with the catalogs.

1. The migrations are the list of objects; only the keys of tables stand beside them (`_KEYS`). Every
   role may read the catalogs, also on a standby.
2. A repair that replaces objects with the class of the marks first waits for every open append:
   with two classes, readers would not see some appenders.
3. Jobs that were inserted without the trigger are not found by claims. A repair of the trigger or
   its function waits for every open insert, and then adds bells for the existing jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ..client.names import quoted
from .opened import filled, migrations
from .rights import GRANTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .opened import AnyConnection, LogSchema
    from .rights import Grant, Rights, Roles


_PIECE = re.compile(r"--[^\n]*|'(?:[^']|'')*'|(\$\w*\$).*?\1|;|.", re.DOTALL)
_CREATE = re.compile(
    r"CREATE (?:OR REPLACE )?(?:UNIQUE )?(?P<kind>FUNCTION|INDEX|SEQUENCE|TABLE|TRIGGER|VIEW) "
    r"(?:\{schema\}\.)?(?P<name>\w+)"
)
_KEY = re.compile(
    r"(?P<column>\w+) (?:bigint|int|text)\b[^,\n]* PRIMARY KEY(?! \()"
    r"|(?:CONSTRAINT (?P<name>\w+) )?(?P<kind>PRIMARY KEY|UNIQUE) \((?P<columns>[\w, ]+)\)"
)
"""A key in the statement that creates a table. A test compares them with the catalogs. Checks and
foreign keys only guard against our own bugs.
"""
_COUNTS = "INCREMENT 1 CACHE 1 NO CYCLE"
_COUNTERS = {
    "position": f"{_COUNTS} MAXVALUE 281474976710655",
    "job_place": _COUNTS,
    "job_lease": _COUNTS,
}
_LOCK_OUT = "LOCK TABLE {schema}.message IN ACCESS EXCLUSIVE MODE"
_LOCK_JOBS = "LOCK TABLE {schema}.job IN SHARE ROW EXCLUSIVE MODE"
_RINGING = {("function", "ring"), ("trigger", "job.ring")}
_RING_AGAIN = "SELECT {schema}.ring_again(NULL)"
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
class SchemaObject:
    """A function, index, sequence, table, trigger, view or constraint."""

    kind: str
    name: str
    statement: str
    """The statement that creates it, with placeholders."""
    table: str | None = None
    """The table of a constraint or a trigger."""

    @property
    def key(self) -> tuple[str, str]:
        """Its kind and name in the catalogs; the name of a trigger includes that of its table."""
        is_trigger = self.kind == "trigger"
        return self.kind, f"{self.table}.{self.name}" if is_trigger else self.name

    @property
    def body(self) -> str | None:
        """The text of a function's body, with placeholders; `None` for other objects."""
        return self.statement.split("$$")[1] if self.kind == "function" else None

    @property
    def replacement(self) -> str:
        """The statement that also replaces an existing function, trigger or view."""
        is_replaceable = self.kind in {"function", "trigger", "view"}
        created = self.statement.removeprefix("CREATE ").removeprefix("OR REPLACE ")
        return f"CREATE OR REPLACE {created}" if is_replaceable else self.statement

    def sql(self, schema: str, mark_class: int, *, replaces: bool = False) -> str:
        """Return the statement for this schema."""
        text = self.replacement if replaces else self.statement
        return filled(text, schema, mark_class)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@cache
def schema_objects() -> tuple[SchemaObject, ...]:
    """Return all objects of the newest version, in the order of creation."""
    found: dict[tuple[str, str], SchemaObject] = {}
    for migration in migrations():
        for statement in split(migration.text):
            for each in _objects_of(statement):
                found[each.kind, each.name] = each
    return tuple(found.values())


def split(text: str) -> list[str]:
    """Return the statements of a text, without comments before them and semicolons after them."""
    statements: list[str] = []
    pieces: list[str] = []
    for piece in _PIECE.finditer(text):
        if piece[0] == ";":
            statements.append("".join(pieces).strip())
            pieces.clear()
        elif not piece[0].startswith("--"):
            pieces.append(piece[0])
    return [each for each in (*statements, "".join(pieces).strip()) if each]


def _objects_of(statement: str) -> Iterator[SchemaObject]:
    created = _CREATE.match(statement)
    if created is None:
        return
    kind, name = created["kind"].lower(), created["name"]
    after = statement.partition(" ON {schema}.")[2].split(maxsplit=1)
    yield SchemaObject(kind, name, statement, after[0] if kind == "trigger" else None)
    if kind == "table":
        for each in _KEY.finditer(statement):
            columns, is_unique = each["column"] or each["columns"], each["kind"] == "UNIQUE"
            usual = f"{name}_{columns.replace(', ', '_')}_key" if is_unique else f"{name}_pkey"
            key = each["name"] or usual  # as the server names it
            definition = f"{each['kind'] or 'PRIMARY KEY'} ({columns})"
            add = f"ALTER TABLE {{schema}}.{name} ADD CONSTRAINT {key} {definition}"
            yield SchemaObject("constraint", key, add, name)


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """A problem of a log's schema, or a note about it."""

    name: str
    """A short name, such as `sequence-behind`."""
    text: str
    """The problem, in one sentence."""
    repair: tuple[str, ...] = ()
    """The SQL statements that repair it, to be run by the log's owner; empty without any."""
    advice: str = ""
    """Further advice."""
    is_note: bool = False
    """Whether the log works nevertheless."""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f"; to repair: {self.advice}" if self.advice else "")


class _Numbered(NamedTuple):
    """The default of a column that is numbered by a sequence."""

    table: str
    column: str
    text: str
    """The expression, with a placeholder for the schema."""
    danger: str
    """The effect of any other default, for messages."""


_NUMBERED = (
    _Numbered(
        table="message",
        column="position",
        text="{schema}.next_position()",
        danger="takes no mark, so that readers may pass messages",
    ),
    _Numbered(
        table="job",
        column="place",
        text="nextval('{schema}.job_place')",
        danger="takes no place from the sequence, so that jobs may overtake one another",
    ),
)


def problems_of_objects(schema: LogSchema, catalog: Catalog) -> Iterator[SchemaProblem]:
    """Return the problems of objects that are missing, changed, or usable by every role."""
    here = catalog.objects
    for each in schema_objects():
        if each.key not in here:
            if each.kind != "constraint" or ("table", each.table) in here:
                yield _missing(each, schema)
        elif not _is_as_made(each, schema, catalog):
            text = f"the {each} differs from Sluicegate's definition"
            yield SchemaProblem(f"{each.kind}-changed", text, _replacement(each, schema))
        elif each.kind == "trigger" and not catalog.triggers[each.key[1]].is_enabled:
            text = f"the {each} is disabled: no claim finds inserted jobs"
            yield SchemaProblem("trigger-disabled", text, _replacement(each, schema))
    if catalog.public:
        text = f"every role may execute {', '.join(catalog.public)}"
        repair = f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema.sql} FROM PUBLIC"
        yield SchemaProblem("public-rights", text, (repair,))
    yield from _problems_of_sequences(schema, catalog)


def replaced_class(schema: LogSchema, mark_class: int) -> Iterator[str]:
    """Return the statements that replace every object with the class, once no append is open."""
    yield _LOCK_OUT.format(schema=schema.sql)
    for each in schema_objects():
        if "{class}" in each.statement:
            yield each.sql(schema.name, mark_class, replaces=True)


def _problems_of_sequences(schema: LogSchema, catalog: Catalog) -> Iterator[SchemaProblem]:
    for sequence, options in _COUNTERS.items():
        if catalog.sequences.get(sequence) is False:
            text = f"the sequence {sequence} must count by 1, without CACHE and without CYCLE"
            repair = f"ALTER SEQUENCE {schema.sql}.{sequence} {options}"
            advice = "then end the sessions of all applications, which still have cached numbers"
            yield SchemaProblem("sequence-options", text, (repair,), advice)
    for table, column, text, danger in _NUMBERED:
        if ("table", table) not in catalog.objects:
            continue
        wanted = text.format(schema=schema.sql)
        # a catalog shows the type after the argument
        if _plain(wanted).removesuffix(")") not in _plain(
            catalog.defaults.get(f"{table}.{column}", "")
        ):
            repair = f"ALTER TABLE {schema.sql}.{table} ALTER {column} SET DEFAULT {wanted}"
            told = f"the default of {table}.{column} {danger}"
            yield SchemaProblem("default-changed", told, (repair,))


def _missing(each: SchemaObject, schema: LogSchema) -> SchemaProblem:
    repair = [*_with_bells(each, schema, each.sql(schema.name, schema.mark_class))]
    if each.kind == "function":
        repair.append(f"REVOKE EXECUTE ON FUNCTION {schema.sql}.{each.name} FROM PUBLIC")
    advice = "restore it from a dump if it held data" if each.kind == "table" else ""
    return SchemaProblem(f"{each.kind}-missing", f"the {each} is missing", tuple(repair), advice)


def _is_as_made(each: SchemaObject, schema: LogSchema, catalog: Catalog) -> bool:
    if each.body is not None:
        body = filled(each.body, schema.name, schema.mark_class)
        return catalog.bodies[each.name] == body
    if each.kind == "trigger":
        there = catalog.triggers[each.key[1]].definition
        return _plain(there) == _plain(each.sql(schema.name, schema.mark_class))
    if each.name == "appender":
        return f" {schema.mark_class})" in (catalog.appenders or "")
    return True


def _plain(sql: str) -> str:
    """Normalise a text as in the catalogs: no extra white space, no unnecessary quotes."""
    return " ".join(sql.replace('"', "").split())


def _replacement(each: SchemaObject, schema: LogSchema) -> tuple[str, ...]:
    statement = each.sql(schema.name, schema.mark_class, replaces=True)
    if "{class}" in each.statement:
        return ("BEGIN", _LOCK_OUT.format(schema=schema.sql), statement, "COMMIT")
    return _with_bells(each, schema, statement)


def _with_bells(each: SchemaObject, schema: LogSchema, statement: str) -> tuple[str, ...]:
    if each.key not in _RINGING:
        return (statement,)
    lock, ring = (each.format(schema=schema.sql) for each in (_LOCK_JOBS, _RING_AGAIN))
    return ("BEGIN", lock, statement, "COMMIT", ring)


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
    wanted = [*_needed_privileges(roles)]
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


def _needed_privileges(roles: Roles) -> Iterator[_Wanted]:
    for right, names in roles.items():
        for role in names:
            for grant in GRANTS[right]:
                for privilege in grant.privileges:
                    for column in grant.columns or ("",):
                        yield _Wanted(role, right, grant, privilege, column)
