"""What is written where: the arguments of a `SqlSink`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..._core import checks
from ..._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Sequence

Mode = Literal["error", "ignore", "update"]
MODES = ("error", "ignore", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlTarget:
    """The table, its columns, and what becomes of a row whose unique key exists."""

    table: str
    schema: str | None
    columns: tuple[str, ...]
    mode: Mode
    conflict: tuple[str, ...] | None
    update: tuple[str, ...] | None
    version: str | None

    def __post_init__(self) -> None:
        checks.text("table", self.table)
        if self.schema is not None:
            checks.text("schema", self.schema)
        checks.choice("on_conflict", self.mode, MODES)
        if self.mode != "update":
            for name, given in (("update_columns", self.update), ("version_column", self.version)):
                if given is not None:
                    raise bad(name, given, 'needs on_conflict="update"')
        for name, given in (("conflict_columns", self.conflict), ("update_columns", self.update)):
            self._check_among(name, given or ())
        if self.version is not None:
            self._check_among("version_column", (checks.text("version_column", self.version),))

    def _check_among(self, name: str, given: Sequence[str]) -> None:
        unknown = [each for each in given if each not in self.columns]
        if unknown:
            raise bad(name, unknown[0], f"must be among the columns, {', '.join(self.columns)}")
