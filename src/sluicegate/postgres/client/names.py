"""Names of tables in SQL text and in options. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FORMAT = {"format": "int NOT NULL DEFAULT 1"}
LONGEST = 63
"""Maximum length of a name in PostgreSQL, in bytes."""


def quoted(name: str) -> str:
    """Quote an identifier with any characters for SQL."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str | None, name: str) -> str:
    """Return a quoted qualified name; without a schema the search path applies."""
    return quoted(name) if schema is None else f"{quoted(schema)}.{quoted(name)}"


def creation(table: str, columns: Mapping[str, str], key: Iterable[str]) -> str:
    """Return the statement that creates a table, by its qualified name, unless it exists.

    Each row has its format: see `checks.known_format`.
    """
    kinds = ", ".join(f"{name} {kind}" for name, kind in {**columns, **_FORMAT}.items())
    return f"CREATE TABLE IF NOT EXISTS {table} ({kinds}, PRIMARY KEY ({', '.join(key)}))"


def literal(text: str) -> str:
    """Return an SQL string literal."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def channel_name(prefix: str, schema: str) -> str:
    """Return the name of a channel for a schema; long names are hashed."""
    name = f"{prefix}:{schema}"
    if len(name.encode()) <= LONGEST:
        return name
    digest = hashlib.sha256(schema.encode()).hexdigest()
    return f"{prefix}:{digest}"[:LONGEST]
