"""The rows' destination and the treatment of conflicts, from the arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...._core.checks import bad
from ...._core.values.rows import RowTarget
from .plan import TablePlan

if TYPE_CHECKING:
    from .strategy import WriteStrategy
    from .table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(RowTarget):
    """A row target with the write strategy."""

    strategy: WriteStrategy

    def __post_init__(self) -> None:
        RowTarget.__post_init__(self)  # `super()` would refer to the class without slots
        if self.returning and self.mode == "error" and self.strategy.statement == "copy":
            raise bad(
                "returning",
                self.returning,
                'COPY returns nothing; use statement="auto", "values", "insert" or "unnest"',
            )

    def plan(self, table: Table, *, reads_text: bool) -> TablePlan:
        """Complete the arguments with the facts of the table. Raises `ConfigError` for a mismatch."""
        target, key = self.conflict, self.conflict or table.key_within(self.columns)
        self._check_keys(table, key)
        if self.mode == "update" or (self.mode == "ignore" and self.returning):
            target = key  # returned rows are matched to their items by one key
        known = {column.name for column in table.columns}
        strange = [name for name in self.returning if name not in known]
        if strange:
            raise bad("returning", strange, f"{table.qualified} has no such column")
        update = self.update
        if update is None:
            update = tuple(column for column in self.columns if column not in (target or ()))
        elif self.version is not None and self.version not in (*update, *(target or ())):
            update = (*update, self.version)  # the next version is compared with it
        return TablePlan(
            table=table,
            columns=self.columns,
            mode=self.mode,
            target=target,
            key=key,
            update_columns=update,
            version=self.version,
            reads_text=reads_text,
            returning=self.returning,
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
