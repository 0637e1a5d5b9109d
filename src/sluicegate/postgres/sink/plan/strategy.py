"""The choice of the statement for a number of rows. Pure.

`values` is one `INSERT` of all rows, with a parameter per value; `insert` is one `INSERT` per row,
in a pipeline; `unnest` is one `INSERT` from an array per column; `copy` is `COPY`, directly into
the table, or into a staging table first (`staging`) if conflicts are handled, rows are returned, or
the table does not allow `COPY`. `COPY` itself returns nothing per row.

`values` is the fastest for few rows, but each row count is a separate statement, which every
connection prepares and keeps. So by default only some row counts have one (`Sizes`), and only
statements that asyncpg caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...._core import checks
from ...._core.checks import bad
from .sizes import Sizes

if TYPE_CHECKING:
    from ...client.access import StatementCache
    from .plan import TablePlan

STATEMENTS = ("auto", "values", "insert", "unnest", "copy")
VALUES_BELOW = 150
COPY_FROM = 50
STAGING_FROM = 10_000
SIZES = 32
"""Maximum number of row counts with their own statement."""
PARAMETERS = 1_000
"""Maximum parameters of such a statement: the server uses about half a kilobyte for each."""
MOST_PARAMETERS = 32_767
"""Maximum parameters of any statement: their number has 15 bits."""


@dataclass(frozen=True, slots=True)
class WriteStrategy:
    """The requested statement, or the thresholds that determine it."""

    statement: str
    values_below: int
    copy_from: int
    staging_from: int

    @classmethod
    def of(
        cls, statement: str, copy_threshold: int | None, staging_threshold: int | None
    ) -> WriteStrategy:
        """Validate the arguments; `None` is the default. Raises `ConfigError`."""
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
                    f"has no effect with statement={statement!r}; omit one of them",
                )
        return cls(
            statement,
            copy_threshold or min(VALUES_BELOW, staging_threshold or VALUES_BELOW),
            copy_threshold or COPY_FROM,
            staging_threshold or STAGING_FROM,
        )

    def check(self, plan: TablePlan) -> None:
        """Raise `ConfigError` if the requested statement cannot write the table's columns."""
        if self.statement == "unnest" and plan.merge_arrays is None:
            nested = [name for name in plan.columns if plan.table.column(name).is_nested]
            raise bad(
                "statement",
                self.statement,
                f"unnest would split the values of these columns: {', '.join(nested)}",
            )
        if self.statement == "copy" and (uncopied := plan.uncopied or plan.texts):
            raise bad(
                "statement",
                self.statement,
                "asyncpg encodes the values of these columns only as text, which a binary COPY does "
                f"not accept: {', '.join(uncopied)}; choose another statement, or set a codec in "
                "binary format for their types",
            )


class Chooser:
    """Chooses the statement for each batch of an open table."""

    def __init__(self, strategy: WriteStrategy, cache: StatementCache) -> None:
        self._strategy = strategy
        self._longest = cache.longest
        self._sizes = Sizes(min(SIZES, cache.size // 3))

    def choose(self, plan: TablePlan, rows: int) -> str:
        """Choose `values`, `insert`, `unnest`, `copy` or `staging`."""
        strategy = self._strategy
        by_copy = "staging" if plan.answers else "copy"
        if strategy.statement == "copy":
            return by_copy
        if strategy.statement == "values":
            return "values" if rows * len(plan.columns) <= MOST_PARAMETERS else "insert"
        if strategy.statement != "auto":
            return strategy.statement
        if rows < strategy.values_below and self._has_statement(plan, rows):
            return "values"
        if rows < strategy.copy_from:
            return "insert"
        has_arrays = plan.merge_arrays is not None
        if plan.copies and not (plan.answers and has_arrays and rows < strategy.staging_from):
            return by_copy
        return "unnest" if has_arrays else "insert"

    def _has_statement(self, plan: TablePlan, rows: int) -> bool:
        return (
            rows * len(plan.columns) <= PARAMETERS
            and len(plan.values(rows)) <= self._longest
            and self._sizes.take(rows)
        )
