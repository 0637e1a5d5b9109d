"""The rows' destination, the treatment of conflicts, and the choice of a statement, from the arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.checks import bad
from ..._core.values.rows import RowTarget
from .plan import TablePlan

if TYPE_CHECKING:
    from ..client.access import StatementCache
    from .changes import Changes
    from .table import Table

VALUES_BELOW = 150
COPY_FROM = 50
STAGING_FROM = 10_000
SIZES = 32
"""Maximum number of row counts with their own statement."""
PARAMETERS = 1_000
"""Maximum parameters of such a statement: the server uses about half a kilobyte for each."""
STALE = 1_000
"""Number of batches after which an unused row count may be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(RowTarget):
    """A row target with the write strategy."""

    strategy: WriteStrategy
    changes: Changes | None = None

    def __post_init__(self) -> None:
        RowTarget.__post_init__(self)  # `super()` would refer to the class without slots
        if self.changes is not None and self.mode != "update":
            raise bad("changes", self.changes, 'needs on_conflict="update"')

    def plan(
        self, table: Table, *, reads_text: bool, columns: tuple[str, ...] | None = None
    ) -> TablePlan:
        """Complete the arguments with the facts of the table. Raises `ConfigError` for a mismatch.

        `columns` are those to write; default: those of the arguments.
        """
        columns = self.columns if columns is None else columns
        target, key = self.conflict, self.conflict or table.key_within(columns)
        self._check_keys(table, key)
        if self.mode == "update":
            target = key
        update = self.update
        if update is None:
            update = tuple(column for column in columns if column not in (target or ()))
        elif self.version is not None and self.version not in (*update, *(target or ())):
            update = (*update, self.version)  # the next version is compared with it
        return TablePlan(
            table=table,
            columns=columns,
            mode=self.mode,
            target=target,
            key=key,
            update_columns=tuple(column for column in update if column in columns),
            version=self.version,
            reads_text=reads_text,
        )

    def _check_keys(self, table: Table, key: tuple[str, ...] | None) -> None:
        shown = "; ".join(", ".join(each) for each in table.keys) or "none"
        if self.conflict is not None and set(self.conflict) not in map(set, table.keys):
            rule = (
                f"{table.qualified} has no unique index on exactly these columns; its "
                f"unique keys: {shown}"
            )
            raise bad("conflict_columns", self.conflict, rule)
        if self.mode != "error" and table.has_rules:
            rule = (
                f"{table.qualified} has a rule for insertions or updates, with which PostgreSQL "
                "handles no conflicts; replace it by a trigger"
            )
            raise bad("on_conflict", self.mode, rule)
        if self.mode != "error" and key is None:
            rule = (
                f"requires a unique index of {table.qualified} over columns that this sink writes; "
                f"its unique keys: {shown}"
            )
            raise bad("on_conflict", self.mode, rule)


@dataclass(frozen=True, slots=True)
class WriteStrategy:
    """The numbers of rows that determine the statement."""

    values_below: int
    copy_from: int
    staging_from: int

    @classmethod
    def of(cls, copy_threshold: int | None, staging_threshold: int | None) -> WriteStrategy:
        """Validate the arguments; `None` is the default. Raises `ConfigError`."""
        checks.optional_count("copy_threshold", copy_threshold)
        checks.optional_count("staging_threshold", staging_threshold)
        return cls(
            copy_threshold or min(VALUES_BELOW, staging_threshold or VALUES_BELOW),
            copy_threshold or COPY_FROM,
            staging_threshold or STAGING_FROM,
        )


class Chooser:
    """Chooses the statement for each batch of an open table."""

    def __init__(self, strategy: WriteStrategy, cache: StatementCache) -> None:
        self._strategy = strategy
        self._longest = cache.longest
        self._sizes = Sizes(min(SIZES, cache.size // 3))

    def choose(self, plan: TablePlan, rows: int) -> str:
        """Choose `values`, `unnest`, `copy` or `staging`."""
        strategy = self._strategy
        is_direct = plan.copies and not plan.needs_staging
        if is_direct and rows >= strategy.copy_from:
            return "copy"
        if rows < strategy.values_below and self._has_statement(plan, rows):
            return "values"
        if plan.merge_arrays is not None and not (plan.copies and rows >= strategy.staging_from):
            return "unnest"
        return "copy" if is_direct else "staging"

    def _has_statement(self, plan: TablePlan, rows: int) -> bool:
        return (
            rows * len(plan.columns) <= PARAMETERS
            and len(plan.values(rows)) <= self._longest
            and self._sizes.take(rows)
        )


class Sizes:
    """A bounded set of row counts that follows the traffic.

    Each row count costs a prepared statement per connection. A batcher mostly writes full batches,
    and small ones of few different sizes. If there are more row counts than statements, the
    existing ones keep theirs: replacing one in each write would prepare a statement in each write.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._turn = 0
        self._used: dict[int, int] = {}
        """The batch in which each row count was last used, the oldest first."""

    def take(self, rows: int) -> bool:
        """Whether to write this number of rows with its own statement."""
        self._turn += 1
        if self._used.pop(rows, None) is None and len(self._used) >= self._most:
            oldest = next(iter(self._used), None)
            if oldest is None or self._turn - self._used[oldest] <= STALE:
                return False
            del self._used[oldest]
        self._used[rows] = self._turn
        return True
