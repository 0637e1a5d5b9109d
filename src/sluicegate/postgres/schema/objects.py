"""The objects of the schema, read from the migrations, and compared with the catalogs.

1. The migrations are the list of objects. Objects are compared by name, functions also by text.
   Every role may read the catalogs, also on a standby.
2. A repair waits for every open append and every open insert of a job. With two classes of marks,
   readers would not see some appenders. Jobs that were inserted without the trigger are not found
   by claims, so it then adds bells for the existing jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ..client.names import quoted
from .opened import filled, migrations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .opened import AnyConnection, LogSchema


_PIECE = re.compile(r"--[^\n]*|'(?:[^']|'')*'|(\$\w*\$).*?\1|;|.", re.DOTALL)
_CREATE = re.compile(
    r"CREATE (?:OR REPLACE )?(?:UNIQUE )?"
    r"(?P<kind>FUNCTION|INDEX|SEQUENCE|TABLE|TRIGGER|VIEW) (?:\{schema\}\.)?(?P<name>\w+)"
)
_LOCKS = (
    "LOCK TABLE {schema}.message IN ACCESS EXCLUSIVE MODE",
    "LOCK TABLE {schema}.job IN SHARE ROW EXCLUSIVE MODE",
)
_RING_AGAIN = "SELECT {schema}.ring_again(NULL)"
_OBJECTS = """
SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index'
    WHEN 'I' THEN 'index' ELSE 'table' END AS kind, relname::text AS name, NULL AS body, false AS is_public
FROM pg_class WHERE relnamespace = $1::text::regnamespace
UNION ALL SELECT 'function', proname, prosrc, has_function_privilege('public', oid, 'EXECUTE')
FROM pg_proc WHERE pronamespace = $1::text::regnamespace
UNION ALL SELECT 'trigger', c.relname || '.' || t.tgname, NULL, false
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = $1::text::regnamespace AND NOT tgisinternal AND tgenabled IN ('O', 'A')
"""
"""A disabled trigger counts as missing."""


@dataclass(frozen=True, slots=True)
class SchemaObject:
    """A function, index, sequence, table, trigger or view."""

    kind: str
    name: str
    """Its name in the catalogs; that of a trigger includes the table."""
    statement: str
    """The statement that creates it, with placeholders; replaces an existing one if it can."""

    def sql(self, schema: LogSchema) -> str:
        """Return the statement for this schema."""
        return filled(self.statement, schema.name, schema.mark_class)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@cache
def schema_objects() -> tuple[SchemaObject, ...]:
    """Return all objects of the newest version, in the order of creation."""
    found: dict[tuple[str, str], SchemaObject] = {}
    for migration in migrations():
        for statement in split(migration.text):
            if created := _CREATE.match(statement):
                kind, name = created["kind"].lower(), created["name"]
                if kind == "trigger":
                    table = statement.partition(" ON {schema}.")[2].split(maxsplit=1)[0]
                    name = f"{table}.{name}"
                if kind in {"function", "trigger", "view"}:
                    text = statement.removeprefix("CREATE ").removeprefix("OR REPLACE ")
                    found[kind, name] = SchemaObject(kind, name, f"CREATE OR REPLACE {text}")
                else:
                    found[kind, name] = SchemaObject(kind, name, statement)
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


def problems_of_objects(schema: LogSchema, catalog: Catalog) -> Iterator[SchemaProblem]:
    """Return the problems of objects that are missing, changed, or usable by every role."""
    for each in schema_objects():
        statement = each.sql(schema)
        if (each.kind, each.name) not in catalog.objects:
            text = f"the {each} is missing"
            repair: tuple[str, ...] = (statement,)
            advice = ""
            if each.kind == "function":
                revoke = f"REVOKE EXECUTE ON FUNCTION {schema.sql}.{each.name} FROM PUBLIC"
                repair = (statement, revoke)
            elif each.kind == "trigger":
                text = f"{text} or disabled: jobs may be inserted that no claim finds"
                repair = _replacement(each, schema)
            elif each.kind == "table":
                advice = "restore it from a dump if it held data"
            yield SchemaProblem(f"{each.kind}-missing", text, repair, advice)
        elif each.kind == "function" and statement.split("$$")[1] != catalog.bodies[each.name]:
            text = f"the {each} differs from Sluicegate's definition"
            yield SchemaProblem("function-changed", text, _replacement(each, schema))
    if catalog.public:
        text = f"every role may execute {', '.join(catalog.public)}"
        repair = (f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema.sql} FROM PUBLIC",)
        yield SchemaProblem("public-rights", text, repair)


def _replacement(each: SchemaObject, schema: LogSchema) -> tuple[str, ...]:
    locks = (lock.format(schema=schema.sql) for lock in _LOCKS)
    bells = (_RING_AGAIN.format(schema=schema.sql),) if each.name in {"ring", "job.ring"} else ()
    return ("BEGIN", *locks, each.sql(schema), "COMMIT", *bells)


def replaced_class(schema: LogSchema, mark_class: int) -> Iterator[str]:
    """Return the statements that replace every object with the class, once no append is open."""
    yield _LOCKS[0].format(schema=schema.sql)
    for each in schema_objects():
        if "{class}" in each.statement:
            yield filled(each.statement, schema.name, mark_class)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The objects of a schema."""

    objects: frozenset[tuple[str, str]]
    """The objects' kinds and names; the name of a trigger begins with that of its table."""
    bodies: Mapping[str, str]
    """The bodies of functions, by name."""
    public: tuple[str, ...]
    """The functions that every role may execute."""


async def read_catalog(con: AnyConnection, schema: str) -> Catalog:
    """Read the catalogs, in a transaction."""
    rows = await con.fetch(_OBJECTS, quoted(schema))
    return Catalog(
        objects=frozenset((row["kind"], row["name"]) for row in rows),
        bodies={row["name"]: row["body"] for row in rows if row["kind"] == "function"},
        public=tuple(sorted(row["name"] for row in rows if row["is_public"])),
    )
