"""The facts on which every statement of an open sink depends, and the common clauses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING

from ...._clients.postgres.names import quoted
from ...._clients.postgres.value_checks import GEOMETRIC
from ..rows.changed import column_check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..rows.changed import ColumnCheck
    from .table import Table

JSON_TYPES = frozenset({"json", "jsonb"})


@dataclass(frozen=True)
class PlanFacts:
    """A table, the columns to write, and the treatment of conflicts: validated and complete."""

    table: Table
    columns: tuple[str, ...]
    mode: str
    """`error`, `ignore` or `update`."""
    target: tuple[str, ...] | None
    """The columns of `ON CONFLICT`; `None` for any unique key."""
    key: tuple[str, ...] | None
    """The unique key by which a row is looked up after an unknown outcome."""
    update_columns: tuple[str, ...]
    version: str | None
    reads_text: bool
    """Whether JSON, XML and enums are sent as text, which a user's codec may change."""
    uncopied: tuple[str, ...] = ()
    """The columns that asyncpg cannot `COPY`, because a user's codec may encode them as text."""
    json_types: frozenset[str] = JSON_TYPES
    """The types whose values are encoded as JSON text here, not by a user's codec."""
    returning: tuple[str, ...] = ()
    """The columns of the stored row for its item's receipt."""

    @property
    def copies(self) -> bool:
        """Whether asyncpg can `COPY` the rows, at least into staging."""
        return not self.uncopied

    @property
    def answers(self) -> bool:
        """Whether a plain `COPY` into the table is not possible: conflicts are handled, rows are
        returned, the table does not allow `COPY`, or values are sent as text.
        """
        return (
            self.mode != "error"
            or bool(self.returning)
            or not self.table.takes_copy
            or bool(self.texts)
        )

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The columns whose values are sent as text, since asyncpg has no binary encoder."""
        return tuple(name for name in self.columns if self.table.column(name).as_text)

    @property
    def returns_all(self) -> bool:
        """Whether each inserted row returns a row, in order, unless two rows have the same key."""
        if not self.table.is_plain or self.mode == "ignore":
            return False
        return self.mode == "error" or (bool(self.update_columns) and self.version is None)

    @cached_property
    def key_of(self) -> Callable[[Sequence[object]], object]:
        """The values of the conflict key in a row."""
        return itemgetter(*(self.columns.index(name) for name in self.target or ()))

    @property
    def key_places(self) -> tuple[int, ...]:
        """The places of the key's values in a row."""
        return tuple(self.columns.index(name) for name in self.key or ())

    @cached_property
    def packed_types(self) -> tuple[str, ...]:
        """The columns' types for packing rows for `COPY`; empty if a user's codec may encode them."""
        found = (self.table.column(name) for name in self.columns)
        types = tuple(column.sent_as for column in found)
        return types if self.reads_text else ()

    @cached_property
    def numeric_places(self) -> tuple[int, ...]:
        """The places of numeric columns' values in a row; empty if a user's codec may encode them."""
        found = [self.table.column(name) for name in self.columns]
        return tuple(
            place
            for place, column in enumerate(found)
            if self.reads_text and "numeric" in {column.identity, column.element}
        )

    @cached_property
    def checked_places(self) -> dict[int, ColumnCheck]:
        """The places of columns for which asyncpg may change values, and the checks of these.

        Intervals are not checked if a user's codec may encode them.
        """
        found = [column_check(self.table.column(name)) for name in self.columns]
        return {
            place: check
            for place, check in enumerate(found)
            if check is not None and (self.reads_text or not check.kind.startswith("interval"))
        }

    @cached_property
    def rounded_places(self) -> tuple[int, ...]:
        """The places of real columns' values in a row, whose excess digits asyncpg drops."""
        kinds = [self.table.column(name).identity for name in self.columns]
        return tuple(place for place, kind in enumerate(kinds) if kind == "real")

    @cached_property
    def checks_exact(self) -> bool:
        """Whether asyncpg may change values of the exact types of Python: dates and times, and
        bytes as coordinates.
        """
        checked = (check.kind for check in self.checked_places.values())
        return any(kind.startswith(("date", "time")) or kind in GEOMETRIC for kind in checked)

    @cached_property
    def is_converted(self) -> bool:
        """Whether values are encoded as JSON, or columns of the stored row are recorded."""
        return bool(self.json_places or self.returning)

    @cached_property
    def json_places(self) -> dict[int, bool]:
        """The places of JSON columns' values in a row, and whether they contain arrays; without
        types that a user's codec encodes.
        """
        found = [self.table.column(name) for name in self.columns]
        return {
            place: column.element is not None
            for place, column in enumerate(found)
            if (column.element or column.identity) in self.json_types
        }

    @property
    def into(self) -> str:
        """The beginning of an insertion into the table."""
        return (
            f"INSERT INTO {self.table.qualified} AS penstock_row "
            f"({', '.join(map(quoted, self.columns))})"
        )

    @property
    def all_staged(self) -> str:
        """The staging columns that contain a row's values."""
        return ", ".join(self.staged(self.columns))

    @property
    def stages_types(self) -> bool:
        """Whether loose staging has no text column instead of a column's own type."""
        return not any(self.casts)

    @property
    def loose_types(self) -> list[str]:
        """The types of loose staging."""
        found = (self.table.column(name) for name in self.columns)
        return [
            "pg_catalog.text" if cast and not column.as_text else column.given
            for column, cast in zip(found, self.casts, strict=True)
        ]

    @property
    def casts(self) -> list[str]:
        """For each column, the cast from loose staging to its type; empty if none is needed."""
        found = (self.table.column(name) for name in self.columns)
        return [
            column.typed("")
            or (
                f"::{column.exact}"
                if self.reads_text and (column.is_read or column.is_enum)
                else ""
            )
            for column in found
        ]

    def values_of(self, table: str = "", *, own: bool = False) -> str:
        """The returned columns as `v0`, `v1`, ...; with `own` they have these names already."""
        path = f"{table}." if table else ""
        return ", ".join(
            f"{path}v{place}" if own else f"{path}{quoted(name)} AS v{place}"
            for place, name in enumerate(self.returning)
        )

    @property
    def target_clause(self) -> str:
        """The columns of `ON CONFLICT`, as SQL."""
        return "" if self.target is None else f" ({', '.join(map(quoted, self.target))})"

    @property
    def on_conflict(self) -> str:
        """The conflict clause of the mode."""
        if self.mode == "error":
            return ""
        if self.mode == "ignore" or not self.update_columns:
            return f" ON CONFLICT{self.target_clause} DO NOTHING"
        changes = ", ".join(
            f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in self.update_columns
        )
        newer = ""
        if self.version is not None:
            version = quoted(self.version)
            newer = (
                f" WHERE penstock_row.{version} IS NULL OR penstock_row.{version} < "
                f"EXCLUDED.{version}"
            )
        return f" ON CONFLICT{self.target_clause} DO UPDATE SET {changes}{newer}"

    def staged(self, names: tuple[str, ...]) -> list[str]:
        """The staging columns that contain these columns' values."""
        return [f"c{self.columns.index(name)}" for name in names]
