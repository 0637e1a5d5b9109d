"""What became of the rows of one write."""

from __future__ import annotations

import html
from dataclasses import dataclass, field, fields
from typing import Any

from .._core.errors import PenstockError


class DeadLettersError(PenstockError):
    """Rows failed for good, and more of them than the write allows. The message shows the first."""


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A row that failed for good."""

    row: dict[str, Any]
    """The row as its JSON says it."""
    error_type: str
    message: str
    partition: int


@dataclass(frozen=True, slots=True)
class UnitReport:
    """The counts of one task's write."""

    partition: int
    """The task's partition, or the key's bucket where the write is cut into buckets."""
    rows: int = 0
    delivered: int = 0
    duplicate: int = 0
    dead_lettered: int = 0
    failed: int = 0
    chunks: int = 0
    retries: int = 0
    seconds: float = 0.0
    attempt: int = 0
    """Spark's number of the attempt that is counted here; 0 unless the task was run again."""
    stopped: int = 0
    """Of the dead-lettered and failed rows those that were left out behind a failed one of their key (`on_key_failure`)."""
    skipped: bool = False
    """Committed by an earlier attempt, so that nothing was written; the counts are those of the ledger, what was delivered is `duplicate`."""


@dataclass(frozen=True, slots=True)
class SparkWriteReport:
    """The exact counts of one write, over all of its tasks; shows itself as a table in a terminal and in a notebook."""

    units: tuple[UnitReport, ...]
    dead_rows: tuple[DeadRow, ...] = field(default=())
    """The rows that came back (`dead_letters="return"`), or the first of those for which the write failed."""

    @property
    def rows(self) -> int:
        """Rows that were read."""
        return sum(unit.rows for unit in self.units)

    @property
    def delivered(self) -> int:
        """Rows that the destination has, those included that it had already."""
        return sum(unit.delivered + unit.duplicate for unit in self.units)

    @property
    def dead_letters(self) -> int:
        """Rows that failed for good, whether a dead-letter sink has them or not."""
        return sum(unit.dead_lettered + unit.failed for unit in self.units)

    @property
    def failed(self) -> int:
        """Rows that failed for good, and that no dead-letter sink has."""
        return sum(unit.failed for unit in self.units)

    @property
    def stopped(self) -> int:
        """Of the dead letters those rows that were left out behind a failed one of their key."""
        return sum(unit.stopped for unit in self.units)

    @property
    def retries(self) -> int:
        """Tries that were made again inside of tasks."""
        return sum(unit.retries for unit in self.units)

    @property
    def skipped_units(self) -> int:
        """Units that an earlier attempt had committed."""
        return sum(unit.skipped for unit in self.units)

    @property
    def seconds(self) -> float:
        """Of the task that took longest."""
        return max((unit.seconds for unit in self.units), default=0.0)

    def raise_for_dead_letters(self) -> None:
        """Raise `DeadLettersError` if any row failed for good, and no dead-letter sink has it."""
        if self.failed:
            first = f"; the first: {self.dead_rows[0].error_type}: {self.dead_rows[0].message}" if self.dead_rows else ""
            message = f"{self.failed} of {self.rows} rows failed for good{first}"
            raise DeadLettersError(message)

    def _table(self) -> list[tuple[str, ...]]:
        names = [f.name for f in fields(UnitReport)]
        units = sorted(self.units, key=lambda unit: unit.partition)
        return [tuple(names), *(tuple(_shown(getattr(unit, name)) for name in names) for unit in units)]

    def __str__(self) -> str:
        rate = f", {self.rows / self.seconds:,.0f} rows/s" if self.seconds else ""
        text = f"{self.rows:,} rows: {self.delivered:,} delivered, {self.dead_letters:,} dead letters, {self.retries:,} retries"
        return f"{text}, in {len(self.units)} tasks{rate}"

    def _repr_html_(self) -> str:
        """The table that notebooks show."""
        head, *body = self._table()
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in body)
        return f"<p>{html.escape(str(self))}</p><table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"


def _shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else format(value, ",")
