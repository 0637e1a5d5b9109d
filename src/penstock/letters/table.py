"""The table of dead letters in PostgreSQL: its columns, its statements, and checks of a table. Pure.

A column that a later release adds belongs at the end of `COLUMNS`. It is nullable or has a default,
so that `additions` can add it to a table that holds letters already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._clients.postgres.names import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_JSON = ("json", "jsonb")
_WHOLE = ("integer", "bigint")


@dataclass(frozen=True, slots=True)
class Column:
    """A column as `penstock dlq init` creates it."""

    name: str
    types: tuple[str, ...]
    """The accepted types, as `format_type` spells them. The first one is created."""
    rest: str = ""
    """Constraints and default."""

    @property
    def definition(self) -> str:
        """Its definition in SQL."""
        return f"{self.name} {self.types[0]}{self.rest and ' '}{self.rest}"

    @property
    def is_addable(self) -> bool:
        """Whether rows that exist without it get a value."""
        return self.is_nullable or self.fills_itself

    @property
    def fills_itself(self) -> bool:
        """Whether a row that omits it gets a value."""
        return "DEFAULT" in self.rest or "GENERATED" in self.rest

    @property
    def is_nullable(self) -> bool:
        """Whether it may hold NULL."""
        return not self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundColumn:
    """A column of a table that exists."""

    name: str
    type: str
    is_required: bool
    """NOT NULL."""
    fills_itself: bool
    """It has a default, an identity or a generated value."""


COLUMNS = (
    Column("key", ("text",), "PRIMARY KEY"),
    Column("item", _JSON, "NOT NULL"),
    Column("error_type", ("text",), "NOT NULL"),
    Column("error_class", ("text",), "NOT NULL"),
    Column("message", ("text",), "NOT NULL"),
    Column("attempts", _WHOLE, "NOT NULL"),
    Column("first_at", ("timestamp with time zone",), "NOT NULL"),
    Column("last_at", ("timestamp with time zone",), "NOT NULL"),
    Column("batcher", ("text",), "NOT NULL"),
    Column("batch_id", ("text",), "NOT NULL"),
    Column("tenant", _JSON),
    Column("trace_id", ("text",)),
    Column("maybe_delivered", ("boolean",), "NOT NULL"),
    Column("item_key", ("text",)),
    Column("parked_behind", ("boolean",), "NOT NULL DEFAULT false"),
    # their order of arrival, and the notes of replays
    Column("number", ("bigint", "integer"), "GENERATED ALWAYS AS IDENTITY"),
    Column("state", ("text",), "NOT NULL DEFAULT 'pending'"),
    Column("replay", ("text",)),
    Column("outcome", ("text",)),
    # since letters name their cause and keep items of every type
    Column("cause_type", ("text",), "NOT NULL DEFAULT ''"),
    Column("code", ("text",), "NOT NULL DEFAULT ''"),
    Column("item_form", ("text",), "NOT NULL DEFAULT 'plain'"),
)
LATER = ("cause_type", "code", "item_form")
"""Columns that a table of an earlier release lacks. It is still read."""
_ALWAYS = frozenset({"key", "item", "error_class", "parked_behind"})


def upgrade(table: str, columns: Collection[str], missing: Collection[str]) -> str:
    """The statement that adds the `missing` ones of a sink's `columns` to the quoted `table`; empty
    unless it is a table of dead letters made by an earlier release.
    """
    if not (_ALWAYS.issubset(columns) and set(LATER).issuperset(missing)):
        return ""
    added = (f"ADD COLUMN {each.definition}" for each in COLUMNS if each.name in missing)
    return f"ALTER TABLE {table} {', '.join(added)}"


def creation(table: str) -> str:
    """The statement that creates the quoted `table`."""
    lines = ",\n".join(f"    {column.definition}" for column in COLUMNS)
    return f"CREATE TABLE {table} (\n{lines}\n)"


def additions(found: Sequence[FoundColumn]) -> list[Column]:
    """The columns that an earlier release did not create."""
    names = {each.name for each in found}
    return [column for column in COLUMNS if column.name not in names and column.is_addable]


def differences(found: Sequence[FoundColumn], *, has_unique_key: bool) -> list[str]:
    """Why letters cannot be kept in a table of these columns; empty for a table of dead letters."""
    by_name = {each.name: each for each in found}
    told = [why for column in COLUMNS if (why := _difference(column, by_name.get(column.name)))]
    if "key" in by_name and not has_unique_key:
        told.append("key has no primary key or unique constraint of its own")
    return told + _unfilled(by_name)


def _difference(column: Column, found: FoundColumn | None) -> str:
    if found is None:
        return "" if column.is_addable else f"there is no column {column.name}"
    if found.type not in column.types:
        return f"{column.name} is of type {found.type}, not {' or '.join(column.types)}"
    if column.fills_itself and not found.fills_itself:
        return f"{column.name} has no default"
    if column.is_nullable and found.is_required:
        return f"{column.name} is NOT NULL, but a letter may have none"
    return ""


def _unfilled(found: Mapping[str, FoundColumn]) -> list[str]:
    """Other columns, which a letter leaves out, must fill themselves."""
    own = {column.name for column in COLUMNS}
    return [
        f"{quoted(each.name)} is NOT NULL without a default, and no field of a letter"
        for each in found.values()
        if each.name not in own and each.is_required and not each.fills_itself
    ]
