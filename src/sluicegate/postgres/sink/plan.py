"""The statements of an open sink, as text.

1. Every external name is quoted. Staging tables are temporary, with their own names and columns
   (`o` is the row's place, `c0`, `c1`, ... are its values), so no user's name can clash with them.
2. *Exact* staging has the target's types, so that its keys compare like the target's. *Loose*
   staging has base types without lengths, and text for values that only the server can parse (JSON,
   XML, enums), so that it accepts nearly every row, and errors appear later, row by row.
3. Of several rows with the same key in a batch, the row takes effect that would remain if they were
   written one by one: the last one, or with a version column the first one with the highest
   version; columns that are not replaced are those of the first row. Keys and versions are
   compared like the table's columns, with their collations.
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names by `quoted`, types as the server spelled them

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from ..client.names import quoted
from .facts import PlanFacts

if TYPE_CHECKING:
    from collections.abc import Callable

EXACT = "sluicegate_exact"
LOOSE = "sluicegate_loose"
VERDICT = "sluicegate_verdict"
SCHEMA = "pg_temp"
"""The names of the temporary tables for staged rows, and their schema."""
TEXTS = 64
"""Number of cached texts of a statement with a parameter per value: one for each row count."""


@dataclass(frozen=True)
class TablePlan(PlanFacts):
    """The statements of an open sink for its table."""

    @cached_property
    def values(self) -> Callable[[int], str]:
        """Insert this number of rows from parameters, with the mode's conflict clause."""
        return lru_cache(TEXTS)(self._values)

    def _values(self, rows: int) -> str:
        casts, wide = self._parameter_casts, len(self.columns)
        given = ", ".join(
            f"({', '.join(f'${row * wide + place}{cast}' for place, cast in enumerate(casts, 1))})"
            for row in range(rows)
        )
        return f"{self.into} VALUES {given}{self.on_conflict}"

    @cached_property
    def _parameter_casts(self) -> list[str]:
        """For each column, the casts of a parameter; empty if it has the column's own type."""
        found = (self.table.column(name) for name in self.columns)
        return [column.typed(f"::{column.given}") if column.as_text else "" for column in found]

    def stage(self, name: str) -> str:
        """Insert one row from parameters into a staging table, if `COPY` is not possible."""
        values = ", ".join(f"${place}" for place in range(1, len(self.columns) + 2))
        return f"INSERT INTO {SCHEMA}.{name} VALUES ({values})"

    def staging(self, *, again: bool = False) -> str:
        """Create empty exact staging in the open transaction; with `again` it may already exist."""
        return staging_table(EXACT, self.exact_types, again=again)

    def _typed(self, source: str) -> str:
        """Rows of a source, with values that were sent as text in their columns' types."""
        if not self.texts:
            return source
        found = enumerate(self.table.column(name) for name in self.columns)
        values = ", ".join(f"{column.typed(f'c{place}')} AS c{place}" for place, column in found)
        return f"(SELECT o, {values} FROM {source}) AS given"

    @property
    def _staged(self) -> str:
        """The rows of exact staging."""
        return self._typed(f"{SCHEMA}.{EXACT}")

    @cached_property
    def same_types(self) -> str:
        """A condition for `COPY` that is always true, and that the server refuses to parse if a
        column has another type than in the plan.

        No operator compares arrays of different types. A row of NULLs needs no SELECT privilege.
        """
        row = f"(NULL::{self.table.qualified})"
        same = " AND ".join(
            f"ARRAY[{row}.{quoted(name)}] = NULL::{self.table.column(name).exact}[]"
            for name in self.columns
        )
        return f"({same}) IS NULL OR true"

    @cached_property
    def merge(self) -> str:
        """Insert from exact staging, with the mode's conflict clause."""
        return self._insert_latest(self._staged)

    @cached_property
    def merge_distinct(self) -> str:
        """Like `merge`, for rows with distinct keys."""
        return self._insert_plainly(self._staged)

    @cached_property
    def merge_arrays(self) -> str | None:
        """Like `merge`, from an array per column; `None` if `unnest` would split the values.

        The arrays have base types: a cast to a shorter type would truncate values silently, whereas
        the insertion refuses them.
        """
        found = [self.table.column(name) for name in self.columns]
        if any(column.is_nested for column in found):
            return None
        arrays = ", ".join(f"${place}::{column.given}[]" for place, column in enumerate(found, 1))
        rows = f"unnest({arrays}) WITH ORDINALITY AS given({self.all_staged}, o)"
        return self._insert_latest(self._typed(rows))

    def _insert_latest(self, source: str) -> str:
        if self.mode != "update":
            return self._insert_plainly(source)
        keys = self.staged(self.target or ())
        same = [self.compared(name) for name in self.target or ()]
        ranked = f"SELECT *, {self._rank(same)} AS r FROM {source}"
        alone = " OR ".join(f"{key} IS NULL" for key in keys)
        values = self.all_staged
        if self.first_columns:
            first = {
                value: f"CASE WHEN {alone} THEN {value} ELSE f{value} END"
                for value in self.staged(self.first_columns)
            }
            frame = f"OVER (PARTITION BY {', '.join(same)} ORDER BY o)"
            found = ", ".join(f"first_value({value}) {frame} AS f{value}" for value in first)
            ranked = f"SELECT *, {self._rank(same)} AS r, {found} FROM {source}"
            values = ", ".join(first.get(value, value) for value in self.staged(self.columns))
        return (
            f"{self.into} SELECT {values} FROM ({ranked}) AS ranked WHERE r = 1 OR {alone} "
            f"ORDER BY {self.order}{self.on_conflict}"
        )

    def _insert_plainly(self, source: str) -> str:
        return f"{self.into} SELECT {self.all_staged} FROM {source} ORDER BY {self.order}{self.on_conflict}"

    def _rank(self, keys: list[str]) -> str:
        """1 for the row of each key that takes effect."""
        order = (
            "o DESC"
            if self.version is None
            else f"{self.compared(self.version)} DESC NULLS LAST, o"
        )
        return f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order})"

    def move_from(self, source: str, order: str | None) -> str:
        """Insert from a table with the same columns; `order` is the column of their order, if any."""
        names = ", ".join(map(quoted, self.columns))
        return (
            f"{self.into} SELECT {names} FROM {source}{self.stored_order(order)}{self.on_conflict}"
        )

    @cached_property
    def resend(self) -> str:
        """Insert from exact staging, skipping every conflict.

        Returns the skipped rows: `o`, whether an earlier row has the same key, and if conflicts are
        errors, whether the stored row of the key has the same values.
        """
        names = ", ".join(map(quoted, self.key or ()))
        keys = self.staged(self.key or ())
        given = ", ".join(f"k{place}" for place in range(len(keys)))
        whole = " AND ".join(f"{key} IS NOT NULL" for key in keys)
        same = " AND ".join(
            self.table.column(name).equal(f"d.k{place}", f"s.{key}")
            for place, (name, key) in enumerate(zip(self.key or (), keys, strict=True))
        )
        only = self.target_clause if self.mode == "ignore" else ""
        stored = equal = ""
        if self.mode == "error":
            stored = f" LEFT JOIN {self.table.qualified} t ON {self.same_key}"
            equal = f", {self.same_values} AS same"
        return (
            f"WITH d({given}) AS ({self.into} SELECT {self.all_staged} FROM {self._staged} ORDER "
            f"BY {self.order} ON CONFLICT{only} DO NOTHING"
            f" RETURNING {names}), s AS (SELECT *, row_number() OVER "
            f"(PARTITION BY {', '.join(keys)} ORDER BY o) AS r"
            f" FROM {self._staged} WHERE {whole})"
            f" SELECT s.o, s.r > 1 AS again{equal} FROM s LEFT JOIN d ON {same}{stored} WHERE "
            "d.k0 IS NULL OR s.r > 1"
        )

    @cached_property
    def encode(self) -> str:
        """Takes a row and one more value; never executed with values (see `refused_rows`)."""
        found = (self.table.column(name) for name in self.columns)
        types = [*(c.given if c.as_text else c.exact for c in found), "int4"]
        return "SELECT " + ", ".join(f"${place}::{kind}" for place, kind in enumerate(types, 1))

    @cached_property
    def read(self) -> str:
        """Takes a row, and compares its values with NULL."""
        found = enumerate((self.table.column(name) for name in self.columns), 1)
        return "SELECT " + ", ".join(f"${place}::{each.given} IS NULL" for place, each in found)


def staging_table(name: str, types: list[str], *, again: bool) -> str:
    """Create a staging table: `o` is the place of the row, `c0`, `c1`, ... are its values."""
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(types))
    return temporary(name, f"(o int4, {columns})", again=again)


def temporary(name: str, columns: str, *, again: bool) -> str:
    """Create an empty table that lasts until the transaction ends.

    Created once per transaction: a dropped one would keep its locks.
    """
    made = f"{name}{columns} ON COMMIT DROP"
    return (
        f"CREATE TEMP TABLE IF NOT EXISTS {made}; TRUNCATE {SCHEMA}.{name}"
        if again
        else f"CREATE TEMP TABLE {made}"
    )
