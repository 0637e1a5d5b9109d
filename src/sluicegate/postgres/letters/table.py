"""The table of dead letters in PostgreSQL: its columns, its statements, and checks of a table.
Pure.

Add new columns at the end of `COLUMNS`. They must be nullable or have a default, so that
`additions` can add them to a table that already contains letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..client.names import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_JSON = ("json", "jsonb")
_WHOLE = ("integer", "bigint")


@dataclass(frozen=True, slots=True)
class Column:
    """A column as `sluicegate dlq init` creates it."""

    name: str
    types: tuple[str, ...]
    """The accepted types, as PostgreSQL's documentation spells them. The first one is created."""
    rest: str = ""
    """Constraints and default."""

    @property
    def definition(self) -> str:
        """Its definition in SQL."""
        return f"{self.name} {self.types[0]}{self.rest and ' '}{self.rest}"

    @property
    def is_addable(self) -> bool:
        """Whether existing rows get a value if it is added."""
        return self.is_nullable or self.fills_itself

    @property
    def fills_itself(self) -> bool:
        """Whether a row that omits it gets a value."""
        return "DEFAULT" in self.rest or "GENERATED" in self.rest

    @property
    def is_nullable(self) -> bool:
        """Whether it may be NULL."""
        return not self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundColumn:
    """A column of an existing table."""

    name: str
    type: str
    is_required: bool
    """Whether it is NOT NULL."""
    fills_itself: bool
    """Whether it has a default, an identity or a generated value."""


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
    Column("parked_behind", ("boolean",), "NOT NULL"),
    Column("cause_type", ("text",), "NOT NULL"),
    Column("code", ("text",), "NOT NULL"),
    Column("item_form", ("text",), "NOT NULL"),
    # order of arrival, and notes of replays
    Column("number", ("bigint", "integer"), "GENERATED ALWAYS AS IDENTITY"),
    Column("state", ("text",), "NOT NULL DEFAULT 'pending'"),
    Column("replay", ("text",)),
    Column("outcome", ("text",)),
)


def creation(table: str) -> str:
    """Return the statement that creates the quoted `table`."""
    lines = ",\n".join(f"    {column.definition}" for column in COLUMNS)
    return f"CREATE TABLE {table} (\n{lines}\n)"


def additions(found: Sequence[FoundColumn]) -> list[Column]:
    """Return the columns that can be added to a table with the `found` ones."""
    names = {each.name for each in found}
    return [column for column in COLUMNS if column.name not in names and column.is_addable]


def differences(found: Sequence[FoundColumn], *, has_unique_key: bool) -> list[str]:
    """Return why letters cannot be stored in a table with these columns; empty for a table of dead
    letters.
    """
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
    """Return problems of other columns: a letter omits them, so they must fill themselves."""
    own = {column.name for column in COLUMNS}
    return [
        f"{quoted(each.name)} is NOT NULL without a default, and is not a field of a letter"
        for each in found.values()
        if each.name not in own and each.is_required and not each.fills_itself
    ]
