"""The exact counts of a write and of a pipeline, by task and in total, as values and text."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import Any

from .._core.errors import SluicegateError

MOST_LINES = 20
"""Maximum number of units that a report prints."""
_SUMMED = ("rows", "delivered", "duplicate", "dead_letters", "failed", "retries", "seconds")


class DeadLettersError(SluicegateError):
    """More rows failed for good than the write allows. The message shows the first."""


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A row that failed for good."""

    row: dict[str, Any]
    """The row, as JSON."""
    error_type: str
    message: str
    partition: int


@dataclass(frozen=True, slots=True)
class UnitReport:
    """The counts of one task's write."""

    partition: int
    """The task's partition, or the key's bucket if the write is divided into buckets."""
    rows: int = 0
    delivered: int = 0
    duplicate: int = 0
    dead_lettered: int = 0
    failed: int = 0
    chunks: int = 0
    retries: int = 0
    """Number of retries of batches and parts of batches; at `"bucket"` also of the transaction."""
    seconds: float = 0.0
    attempt: int = 0
    """Spark's number of the counted attempt; 0 unless the task ran again."""
    stopped: int = 0
    """Number of dead-lettered and failed rows that were skipped after a failed row of their key
    (`on_key_failure`).
    """
    superseded: int = 0
    """Number of earlier rows of the keys that `latest_only` omitted; not included in `rows`."""
    began_at: float = field(default=0.0, compare=False)
    """Start of the unit, in seconds since 1970 by the executor's clock."""
    skipped: bool = False
    """Whether an earlier attempt committed the unit, so that nothing was written. The counts are
    then those of the ledger, with the delivered rows as `duplicate`.
    """


@dataclass(frozen=True, slots=True)
class SparkWriteReport:
    """The exact counts of a write over all its tasks; shown as a table in terminals and notebooks."""

    units: tuple[UnitReport, ...]
    dead_rows: tuple[DeadRow, ...] = field(default=())
    """The returned rows (`dead_letters="return"`), or the first of those that failed the write."""

    @property
    def rows(self) -> int:
        """Number of rows read."""
        return sum(unit.rows for unit in self.units)

    @property
    def delivered(self) -> int:
        """Number of rows that this write has put into the destination."""
        return sum(unit.delivered for unit in self.units)

    @property
    def duplicate(self) -> int:
        """Number of rows that the destination already had, among them those of skipped units."""
        return sum(unit.duplicate for unit in self.units)

    @property
    def dead_letters(self) -> int:
        """Number of rows that failed for good, whether or not a dead-letter sink has them."""
        return sum(unit.dead_lettered + unit.failed for unit in self.units)

    @property
    def failed(self) -> int:
        """Number of rows that failed for good and that no dead-letter sink has."""
        return sum(unit.failed for unit in self.units)

    @property
    def stopped(self) -> int:
        """Number of dead letters that were skipped after a failed row of their key."""
        return sum(unit.stopped for unit in self.units)

    @property
    def superseded(self) -> int:
        """Number of rows that `latest_only` omitted because their key has a later row; not included
        in `rows`.
        """
        return sum(unit.superseded for unit in self.units)

    @property
    def retries(self) -> int:
        """Number of retries inside tasks."""
        return sum(unit.retries for unit in self.units)

    @property
    def skipped_units(self) -> int:
        """Number of units that an earlier attempt had committed."""
        return sum(unit.skipped for unit in self.units)

    @property
    def seconds(self) -> float:
        """Duration of the longest task, in seconds."""
        return max((unit.seconds for unit in self.units), default=0.0)

    @property
    def elapsed(self) -> float:
        """Seconds from the start of the first task to the end of the last one. The accuracy is that
        of the executors' clocks.
        """
        ends = [unit.began_at + unit.seconds for unit in self.units if unit.began_at]
        return (
            max(ends) - min(unit.began_at for unit in self.units if unit.began_at)
            if ends
            else self.seconds
        )

    @property
    def summary(self) -> str:
        """The totals in one line."""
        rate = f", {self.rows / self.elapsed:,.0f} rows/s" if self.elapsed else ""
        behind = f", {self.stopped:,} behind a failed row" if self.stopped else ""
        earlier = f", {self.superseded:,} superseded" if self.superseded else ""
        return f"{_counts(self)}{behind}{earlier}, in {len(self.units)} tasks{rate}"

    def table(self) -> list[tuple[str, ...]]:
        """A heading and one line for each unit, as text."""
        names = [f.name for f in fields(UnitReport) if f.name != "began_at"]
        units = sorted(self.units, key=lambda unit: unit.partition)
        return [
            tuple(names),
            *(tuple(_format(getattr(unit, name)) for name in names) for unit in units),
        ]

    def raise_for_dead_letters(self) -> None:
        """Raise `DeadLettersError` if a row failed for good and no dead-letter sink has it."""
        if self.failed:
            first = (
                f"; the first: {self.dead_rows[0].error_type}: {self.dead_rows[0].message}"
                if self.dead_rows
                else ""
            )
            message = f"{self.failed} of {self.rows} rows failed for good{first}"
            raise DeadLettersError(message)

    def __str__(self) -> str:
        """Return one line, and a table of at most `MOST_LINES` units."""
        head, *body = self.table()
        lines = [head, *body[:MOST_LINES]]
        widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
        shown = (
            [
                "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
                for line in lines
            ]
            if body
            else []
        )
        more = [f"and {len(body) - MOST_LINES} more"] if len(body) > MOST_LINES else []
        return "\n".join([self.summary, *shown, *more])

    def _repr_html_(self) -> str:
        """Return the same text for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """The exact counts of a run over all its writes: one, or one for each micro-batch of a stream."""

    name: str
    writes: int = 0
    rows: int = 0
    """Number of rows read."""
    delivered: int = 0
    """Number of rows that the run has put into the destination."""
    duplicate: int = 0
    """Number of rows that the destination already had, for example of a write that was skipped."""
    dead_letters: int = 0
    """Number of rows that failed for good, whether or not a dead-letter sink has them."""
    failed: int = 0
    """Number of rows that failed for good and that no dead-letter sink has."""
    retries: int = 0
    """Number of retries inside tasks."""
    seconds: float = 0.0
    """Sum of the durations of the longest task of each write, in seconds."""
    last: SparkWriteReport | None = None
    """The report of the last write."""

    def after(self, report: SparkWriteReport) -> PipelineReport:
        """Add the counts of one more write."""
        sums = {name: getattr(self, name) + getattr(report, name) for name in _SUMMED}
        return replace(self, writes=self.writes + 1, last=report, **sums)

    def __str__(self) -> str:
        many = "s" if self.writes != 1 else ""
        return f"{self.name}: {_counts(self)}, in {self.writes:,} write{many}"


def _counts(report: SparkWriteReport | PipelineReport) -> str:
    there = f", {report.duplicate:,} duplicate" if report.duplicate else ""
    return (
        f"{report.rows:,} rows: {report.delivered:,} delivered{there}, {report.dead_letters:,} dead "
        f"letters, {report.retries:,} retries"
    )


def _format(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else format(value, ",")
