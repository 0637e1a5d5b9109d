"""The statement for a number of rows. Pure.

`insert` is one `INSERT` per row in a pipeline, `unnest` one `INSERT` from an array per column,
`copy` is `COPY`: straight into the table, or into a staging table first (`staging`) where conflicts
are handled, rows are returned, or the table takes no `COPY`. `COPY` itself returns nothing per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...._core import checks
from ...._core.checks import bad

if TYPE_CHECKING:
    from .plan import TablePlan

STATEMENTS = ("auto", "insert", "unnest", "copy")
COPY_FROM = 50
STAGING_FROM = 10_000


@dataclass(frozen=True, slots=True)
class WriteStrategy:
    """The requested statement, or the numbers of rows that decide it."""

    statement: str
    copy_from: int
    staging_from: int

    @classmethod
    def of(
        cls, statement: str, copy_threshold: int | None, staging_threshold: int | None
    ) -> WriteStrategy:
        """Check the arguments; `None` is the default. Raises `ConfigError`."""
        checks.choice("statement", statement, STATEMENTS)
        for name, value in (
            ("copy_threshold", copy_threshold),
            ("staging_threshold", staging_threshold),
        ):
            checks.optional_count(name, value)
            if value is not None and statement != "auto":
                raise bad(
                    name,
                    value,
                    f"decides nothing beside statement={statement!r}; leave out one of them",
                )
        return cls(statement, copy_threshold or COPY_FROM, staging_threshold or STAGING_FROM)

    def check(self, plan: TablePlan) -> None:
        """Raise `ConfigError` if the requested statement cannot write the table's columns."""
        if self.statement == "unnest" and plan.merge_arrays is None:
            nested = [name for name in plan.columns if plan.table.column(name).is_nested]
            raise bad(
                "statement",
                self.statement,
                f"unnest would take the values of these columns apart: {', '.join(nested)}",
            )
        if self.statement == "copy" and not plan.copies:
            raise bad(
                "statement",
                self.statement,
                "a codec in text format keeps asyncpg from sending one of the columns by COPY",
            )

    def choose(self, plan: TablePlan, rows: int) -> str:
        """Choose `insert`, `unnest`, `copy` or `staging`."""
        answers = plan.mode != "error" or bool(plan.returning) or not plan.table.takes_copy
        by_copy = "staging" if answers else "copy"
        if self.statement != "auto":
            return by_copy if self.statement == "copy" else self.statement
        if rows < self.copy_from:
            return "insert"
        has_arrays = plan.merge_arrays is not None
        if plan.copies and not (answers and has_arrays and rows < self.staging_from):
            return by_copy
        return "unnest" if has_arrays else "insert"
