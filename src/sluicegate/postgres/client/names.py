"""Names of tables in SQL text and in options. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ..._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LONGEST = 63
"""Maximum length of a name in PostgreSQL, in bytes."""


def quoted(name: str) -> str:
    """Quote an identifier with any characters for SQL."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str | None, name: str) -> str:
    """Return a quoted qualified name; without a schema the search path applies."""
    return quoted(name) if schema is None else f"{quoted(schema)}.{quoted(name)}"


def creation(table: str, columns: Mapping[str, str], key: Iterable[str]) -> str:
    """Return the statement that creates a table, by its qualified name, unless it exists."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in columns.items())
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


def table_name(option: str, value: str) -> tuple[str | None, str]:
    """Split `schema.table` or `table` into (schema, table); a part in double quotes is literal.

    Raises `ConfigError`.
    """
    parts: list[str] = []
    rest = value.strip()
    while rest:
        if rest.startswith('"'):
            part, closed, rest = _unquoted(rest)
        else:
            part, dot, behind = rest.partition(".")
            closed, rest = '"' not in part, dot + behind
        parts.append(part)
        if not (closed and part) or (rest and not rest.startswith(".")) or rest == ".":
            parts.clear()
            break
        rest = rest[1:]
    if len(parts) not in {1, 2}:
        raise bad(
            option,
            value,
            'must be table or schema.table, where a part with a dot or a quote stands in "..."',
        )
    return (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _unquoted(text: str) -> tuple[str, bool, str]:
    """Return the text between the quotes, whether they are closed, and the remainder."""
    taken: list[str] = []
    place = 1
    while (end := text.find('"', place)) != -1:
        taken.append(text[place:end])
        if text[end + 1 : end + 2] != '"':
            return '"'.join(taken), True, text[end + 1 :]
        place = end + 2
    return "", False, ""
