"""The counts of a whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..report import SparkWriteReport


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
        return PipelineReport(
            name=self.name,
            writes=self.writes + 1,
            rows=self.rows + report.rows,
            delivered=self.delivered + report.delivered,
            duplicate=self.duplicate + report.duplicate,
            dead_letters=self.dead_letters + report.dead_letters,
            failed=self.failed + report.failed,
            retries=self.retries + report.retries,
            seconds=self.seconds + report.seconds,
            last=report,
        )

    def __str__(self) -> str:
        there = f", {self.duplicate:,} duplicate" if self.duplicate else ""
        counts = (
            f"{self.rows:,} rows: {self.delivered:,} delivered{there}, {self.dead_letters:,} "
            f"dead letters, {self.retries:,} retries"
        )
        return f"{self.name}: {counts}, in {self.writes:,} write{'s' if self.writes != 1 else ''}"
