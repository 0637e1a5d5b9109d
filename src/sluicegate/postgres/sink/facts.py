"""The facts on which every statement of an open sink depends, and the common clauses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..client.names import quoted
from .rows.order import key_kinds, sorted_places
from .rows.values import column_check, has_no_float, has_no_null

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .rows.order import KeyKind
    from .rows.values import ColumnCheck, Row
    from .table import Table

_CUT = frozenset({"character varying", "character", "bpchar", "bit", "bit varying"})
"""Types that a cast truncates; the insertion refuses such values instead."""
JSON_TYPES = frozenset({"json", "jsonb"})
BYTES = 'pg_catalog."C"'
"""The collation that compares bytes."""


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

    @property
    def copies(self) -> bool:
        """Whether asyncpg can `COPY` the rows, at least into staging."""
        return not self.uncopied

    @cached_property
    def needs_staging(self) -> bool:
        """Whether a plain `COPY` into the table is not possible: conflicts are handled, the table
        does not allow `COPY`, or values are sent as text.
        """
        return self.mode != "error" or not self.table.takes_copy or bool(self.texts)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The columns whose values are sent as text, since asyncpg has no binary encoder."""
        return tuple(name for name in self.columns if self.table.column(name).as_text)

    @property
    def replaces(self) -> bool:
        """Whether an existing row is replaced."""
        return self.mode == "update" and bool(self.update_columns)

    @cached_property
    def key_of(self) -> Callable[[Sequence[object]], object]:
        """The values of the key in a row: one, or a tuple."""
        return itemgetter(*(self.columns.index(name) for name in self.key or ()))

    @cached_property
    def keeps_arrival(self) -> bool:
        """Whether rows are inserted in the order of the batch: a conflict is an error, or a column
        that is not written takes the next number of a sequence.

        All other insertions are in the order of the key (see `rows.order`).
        """
        return self.mode == "error" or any(
            column.is_numbered and column.name not in self.columns for column in self.table.columns
        )

    @cached_property
    def first_columns(self) -> tuple[str, ...]:
        """The columns of the first of several rows with the same key: the others do not replace
        them. Columns of the key only if equal keys may be written in different ways.
        """
        if not self.replaces:
            return ()
        return tuple(
            name
            for name in self.columns
            if name not in self.update_columns
            and (name not in (self.target or ()) or not self.table.column(name).is_spelled_once)
        )

    @property
    def order(self) -> str:
        """The order of insertion of staged rows, as SQL."""
        if self.keeps_arrival:
            return "o"
        return ", ".join([*(self._sorted(name) for name in self.key or ()), "o"])

    def compared(self, name: str) -> str:
        """A staged column's value, as SQL that compares like the column of the table."""
        return f"{self._stored(name)}{_collated(self.table.column(name).collated_by)}"

    def _sorted(self, name: str) -> str:
        if not self.table.column(name).is_bytewise:
            return self.compared(name)
        return f"{self._stored(name)}{_collated(BYTES)}"

    def _stored(self, name: str) -> str:
        """The value as the column stores it: rounded, for example, or without excess spaces."""
        column, (value,) = self.table.column(name), self.staged((name,))
        made = f"{value}::{column.exact}"
        if column.identity.removesuffix("[]") not in _CUT:
            return made
        if column.identity != "character varying" or column.plain_type:
            return value
        whole = f"rtrim({value}) COLLATE {BYTES} = rtrim({made}) COLLATE {BYTES}"
        return f"(CASE WHEN {whole} THEN {made} ELSE {value} END)"

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        """The places of the key's values in a row."""
        return tuple(self.columns.index(name) for name in self.key or ())

    @cached_property
    def key_kinds(self) -> list[KeyKind] | None:
        """The kinds of the key's values by which Python can sort rows; `None` if only the server
        can, also because a user's codec may store other values.
        """
        found = [self.table.column(name) for name in self.key or ()]
        return key_kinds(found) if self.reads_text else None

    def sent_places(
        self, rows: Sequence[Row], keys: list[object] | None = None
    ) -> Sequence[int] | None:
        """The places of the rows in the order in which they are sent as parameters; `None` if only
        the server can sort them. `keys` are their values of the key, if these are known.
        """
        if len(rows) < 2 or self.keeps_arrival:
            return range(len(rows))
        kinds = self.key_kinds
        if not kinds:
            return None
        if keys is None:
            keys = [*map(self.key_of, rows)]
        return sorted_places(kinds, keys)

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

    def takes_plainly(self, values: Sequence[object]) -> bool:
        """Whether a quick check proves that asyncpg sends all values of some rows unchanged,
        whatever the table's types are now, and that each row has its version.
        """
        wide = len(self.columns)
        try:
            for place, is_plain in self._plain_checks:
                if not is_plain(values[place::wide]):
                    return False
        except Exception:  # a value has another type
            return False
        return True

    @cached_property
    def _plain_checks(self) -> Sequence[tuple[int, Callable[[Sequence[Any]], bool]]]:
        found = [(place, check.are_kept) for place, check in self.checked_places.items()]
        found += [(place, has_no_float) for place in self.rounded_places]
        if self.version is not None:
            found.append((self.columns.index(self.version), has_no_null))
        return found

    @cached_property
    def rounded_places(self) -> tuple[int, ...]:
        """The places of real columns' values in a row, whose excess digits asyncpg drops."""
        kinds = [self.table.column(name).identity for name in self.columns]
        return tuple(place for place, kind in enumerate(kinds) if kind == "real")

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
            f"INSERT INTO {self.table.qualified} AS sluicegate_row "
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
        """The types of loose staging, with the columns' collations."""
        found = zip(map(self.table.column, self.columns), self.casts, strict=True)
        return [
            "pg_catalog.text"
            if cast and not column.as_text
            else f"{column.given}{_collated(column.collated_by)}"
            for column, cast in found
        ]

    @property
    def exact_types(self) -> list[str]:
        """The types of exact staging, with the columns' collations."""
        return [
            column.given if column.as_text else self.exact_type(column.name)
            for column in map(self.table.column, self.columns)
        ]

    def exact_type(self, name: str) -> str:
        """A column's declared type and collation."""
        column = self.table.column(name)
        return f"{column.exact}{_collated(column.collated_by)}"

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

    @property
    def same_key(self) -> str:
        """The condition that a row `t` of the table has the key of a staged row `s`."""
        return " AND ".join(
            self.table.column(name).equal(
                f"t.{quoted(name)}", f"s.{key}::{self.table.column(name).exact}"
            )
            for name, key in zip(self.key or (), self.staged(self.key or ()), strict=True)
        )

    @property
    def same_values(self) -> str:
        """Whether a row `t` of the table has the values of a staged row `s`, cast to the columns'
        types; false without a row `t`.

        The stored bytes are compared, since some types have no equality. Numbers of different
        scales may be equal.
        """
        numeric = {self.columns[place] for place in self.numeric_places}
        found = [
            (name, f"t.{quoted(name)}", f"s.{key}::{self.table.column(name).exact}")
            for name, key in zip(self.columns, self.staged(self.columns), strict=True)
        ]
        tests = [f"{t} IS NOT DISTINCT FROM {s}" for name, t, s in found if name in numeric]
        if others := [(t, s) for name, t, s in found if name not in numeric]:
            stored, staged = (", ".join(each) for each in zip(*others, strict=True))
            tests.append(f"pg_catalog.record_image_eq(ROW({stored}), ROW({staged}))")
        there = [f"t.{quoted(name)} IS NOT NULL" for name in self.key or ()]
        return f"({' AND '.join((*there, *tests))})"

    @property
    def target_clause(self) -> str:
        """The columns of `ON CONFLICT`, as SQL."""
        return "" if self.target is None else f" ({', '.join(map(quoted, self.target))})"

    @property
    def on_conflict(self) -> str:
        """The conflict clause of the mode."""
        if self.mode == "error":
            return ""
        if not self.replaces:
            return f" ON CONFLICT{self.target_clause} DO NOTHING"
        changes = ", ".join(
            f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in self.update_columns
        )
        newer = ""
        if self.version is not None:
            version = quoted(self.version)
            newer = (
                f" WHERE sluicegate_row.{version} IS NULL OR sluicegate_row.{version} < "
                f"EXCLUDED.{version}"
            )
        return f" ON CONFLICT{self.target_clause} DO UPDATE SET {changes}{newer}"

    def stored_order(self, place: str | None, of: str = "") -> str:
        """The order of insertion of the rows of a table with the same columns, as SQL; by the column
        `place` if they keep their order. `of` is the table's alias with a dot, if it needs one.
        """
        places = [] if place is None else [quoted(place)]
        keys = [] if self.keeps_arrival else list(self.key or ())
        found = [(quoted(name), self.table.column(name).is_bytewise) for name in keys]
        keyed = [f"{of}{name}{_collated(BYTES if bytewise else None)}" for name, bytewise in found]
        return f" ORDER BY {', '.join([*keyed, *places])}" if keyed or places else ""

    def staged(self, names: tuple[str, ...]) -> list[str]:
        """The staging columns that contain these columns' values."""
        return [f"c{self.columns.index(name)}" for name in names]


def _collated(collation: str | None) -> str:
    return "" if collation is None else f" COLLATE {collation}"
