"""The destination of rows and the treatment of conflicts, from the arguments of a sink."""

from __future__ import annotations

from dataclasses import dataclass

from .. import checks
from ..checks import bad
from .column_names import check_name

MODES = ("error", "ignore", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTarget:
    """A table, its columns, and the treatment of conflicts. Raises `ConfigError`."""

    table: str
    schema: str | None
    columns: tuple[str, ...]
    mode: str
    """`error`, `ignore` or `update`."""
    conflict: tuple[str, ...] | None
    update: tuple[str, ...] | None
    version: str | None
    returning: tuple[str, ...]
    """The columns of the stored row that the item's receipt returns."""

    def __post_init__(self) -> None:
        check_name("table", self.table)
        if self.schema is not None:
            check_name("schema", self.schema)
        checks.choice("on_conflict", self.mode, MODES)
        if self.mode == "error" and self.conflict is not None:
            raise bad("conflict_columns", self.conflict, 'needs on_conflict="ignore" or "update"')
        if self.mode != "update":
            for name, value in (("update_columns", self.update), ("version_column", self.version)):
                if value is not None:
                    raise bad(name, value, 'needs on_conflict="update"')
        self._check_within()

    def _check_within(self) -> None:
        version = None if self.version is None else (self.version,)
        for name, value in (
            ("conflict_columns", self.conflict),
            ("update_columns", self.update),
            ("version_column", version),
        ):
            stray = [column for column in value or () if column not in self.columns]
            if stray:
                raise bad(name, stray, f"must be among columns={self.columns!r}")
        both = sorted(set(self.conflict or ()) & set(self.update or ()))
        if both:
            raise bad("update_columns", both, "must not repeat conflict_columns")

    @property
    def shown(self) -> str:
        """The table's name in messages."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"
