"""The objects of the schema, read from the migrations. Pure.

A check compares them with the catalogs, so there is no second list of objects to maintain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from .history import filled, migrations

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE = re.compile(r"--[^\n]*|'(?:[^']|'')*'|(\$\w*\$).*?\1|;|.", re.DOTALL)
_CREATE = re.compile(
    r"CREATE (?:OR REPLACE )?(?P<unique>UNIQUE )?(?P<kind>FUNCTION|INDEX|SEQUENCE|TABLE|TRIGGER|VIEW) "
    r"(?:\{schema\}\.)?(?P<name>\w+)"
)
_INDEXED = re.compile(r"ON \{schema\}\.(\w+)")
_BODY = re.compile(r"\bAS \$\$(.*)\$\$", re.DOTALL)
_NAMED = re.compile(r"^\s+CONSTRAINT (\w+) (.+?),?$", re.MULTILINE)
_KEY = re.compile(
    r"^\s+PRIMARY KEY \((.+?)\)|^\s+\"?(\w+)\"? .*PRIMARY KEY|\((\w+) \w+ PRIMARY KEY",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class SchemaObject:
    """A function, index, sequence, table, trigger, view or constraint."""

    kind: str
    name: str
    statement: str
    """The statement that creates it, with placeholders."""
    table: str | None = None
    """The table of a constraint, an index or a trigger."""

    @property
    def key(self) -> tuple[str, str]:
        """Its kind and name in the catalogs; the name of a trigger includes that of its table."""
        is_trigger = self.kind == "trigger"
        return self.kind, f"{self.table}.{self.name}" if is_trigger else self.name

    @property
    def body(self) -> str | None:
        """The text of a function's body, with placeholders; `None` for other objects."""
        found = _BODY.search(self.statement) if self.kind == "function" else None
        return None if found is None else found[1]

    @property
    def replacement(self) -> str:
        """The statement that also replaces an existing function, trigger or view."""
        return re.sub(r"^CREATE (?=FUNCTION|TRIGGER|VIEW)", "CREATE OR REPLACE ", self.statement)

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
            for each in _created(statement):
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


def _created(statement: str) -> Iterator[SchemaObject]:
    created = _CREATE.match(statement)
    if created is None:
        return
    kind, name = created["kind"].lower(), created["name"]
    table = _INDEXED.search(statement) if kind in {"index", "trigger"} else None
    yield SchemaObject(kind, name, statement, None if table is None else table[1])
    if kind == "table":
        yield from _constraints(name, statement)


def _constraints(table: str, statement: str) -> Iterator[SchemaObject]:
    """Return the keys of a table. Checks and foreign keys only guard against our own bugs."""
    add = f"ALTER TABLE {{schema}}.{table} ADD"
    for named in _NAMED.finditer(statement):
        text = f"{add} CONSTRAINT {named[1]} {named[2]}"
        yield SchemaObject("constraint", named[1], text, table)
    key = _KEY.search(statement)
    if key is not None:
        columns = next(group for group in key.groups() if group is not None)
        yield SchemaObject("constraint", f"{table}_pkey", f"{add} PRIMARY KEY ({columns})", table)
