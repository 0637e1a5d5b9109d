"""What became of the rows of one write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core.errors import PenstockError
from .progress.page import report_html, stream_page, write_page

if TYPE_CHECKING:
    import os

    from pyspark.sql.streaming.query import StreamingQuery

MOST_LINES = 20
"""Units that a report prints."""


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
    """How often a batch, or a part of one, was to be sent again; at `"bucket"` also how often its
    transaction was.
    """
    seconds: float = 0.0
    attempt: int = 0
    """Spark's number of the attempt that is counted here; 0 unless the task was run again."""
    stopped: int = 0
    """Of the dead-lettered and failed rows those that were left out behind a failed one of their
    key (`on_key_failure`).
    """
    began_at: float = field(default=0.0, compare=False)
    """When it began, in seconds since 1970 by the executor's clock."""
    marks: tuple[tuple[float, int], ...] = field(default=(), compare=False)
    """Moments, as `began_at`, each with the rows that were done by then; a few dozen, however long
    it took.
    """
    skipped: bool = False
    """Committed by an earlier attempt, so that nothing was written; the counts are those of the
    ledger, what was delivered is `duplicate`.
    """


@dataclass(frozen=True, slots=True)
class SparkWriteReport:
    """The exact counts of one write, over all of its tasks; shows itself as a table in a terminal
    and in a notebook.
    """

    units: tuple[UnitReport, ...]
    dead_rows: tuple[DeadRow, ...] = field(default=())
    """The rows that came back (`dead_letters="return"`), or the first of those for which the write
    failed.
    """
    settings: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    """What the write was asked to do, as text; the sink as it shows itself."""

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

    @property
    def elapsed(self) -> float:
        """Seconds from the first task's beginning to the last one's end; as good as the executors'
        clocks agree.
        """
        ends = [unit.began_at + unit.seconds for unit in self.units if unit.began_at]
        return (
            max(ends) - min(unit.began_at for unit in self.units if unit.began_at)
            if ends
            else self.seconds
        )

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one page with the figures and pictures of this run to `path`; it needs nothing but
        itself to be seen.

        What looks like a secret is covered; rows that came back are shown, the first five of each
        error. Raises `MissingExtra` without Jinja2.
        """
        Path(path).write_text(write_page(self), encoding="utf-8")

    def raise_for_dead_letters(self) -> None:
        """Raise `DeadLettersError` if any row failed for good, and no dead-letter sink has it."""
        if self.failed:
            first = (
                f"; the first: {self.dead_rows[0].error_type}: {self.dead_rows[0].message}"
                if self.dead_rows
                else ""
            )
            message = f"{self.failed} of {self.rows} rows failed for good{first}"
            raise DeadLettersError(message)

    def table(self) -> list[tuple[str, ...]]:
        """A heading, and a line for each unit, as text."""
        names = [f.name for f in fields(UnitReport) if f.name not in {"began_at", "marks"}]
        units = sorted(self.units, key=lambda unit: unit.partition)
        return [
            tuple(names),
            *(tuple(_shown(getattr(unit, name)) for name in names) for unit in units),
        ]

    def __str__(self) -> str:
        """One line, and below it a table of the units, of the first `MOST_LINES` where there are
        more.
        """
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

    @property
    def summary(self) -> str:
        """The figures of all units in a line."""
        rate = f", {self.rows / self.elapsed:,.0f} rows/s" if self.elapsed else ""
        text = (
            f"{self.rows:,} rows: {self.delivered:,} delivered, {self.dead_letters:,} dead "
            f"letters, {self.retries:,} retries"
        )
        behind = f", {self.stopped:,} behind a failed row" if self.stopped else ""
        return f"{text}{behind}, in {len(self.units)} tasks{rate}"

    def _repr_html_(self) -> str:
        """What notebooks show: the outcomes as a bar, the units as a table, and what failed
        first.
        """
        return report_html(self)


@dataclass(slots=True)
class StreamReport:
    """The reports of a stream's micro-batches, by number: of all of them the sums, of the last
    `keep` the whole.
    """

    keep: int = 1000
    count: int = 0
    batches: dict[int, SparkWriteReport] = field(default_factory=dict[int, SparkWriteReport])
    """The last ones. A micro-batch that was written again stands here once, as it was the last
    time.
    """

    def add(self, number: int, report: SparkWriteReport) -> None:
        """One more."""
        self.count += 1
        self.batches.pop(number, None)
        self.batches[number] = report
        while len(self.batches) > self.keep:
            del self.batches[next(iter(self.batches))]

    @property
    def total(self) -> SparkWriteReport:
        """The kept micro-batches as one report, with the first dead rows."""
        reports = [*self.batches.values()]
        dead = tuple(row for report in reports for row in report.dead_rows)
        settings = reports[-1].settings if reports else {}
        return SparkWriteReport(
            tuple(unit for report in reports for unit in report.units), dead, settings
        )

    def save_html(self, path: str | os.PathLike[str], query: StreamingQuery | None = None) -> None:
        """Write one page with a tally for each micro-batch to `path`, beside what `query` says of
        its progress.
        """
        progress: list[Any] = [] if query is None else [*query.recentProgress]
        known = [each if isinstance(each, Mapping) else json.loads(each.json) for each in progress]
        Path(path).write_text(stream_page(self, known), encoding="utf-8")

    def __str__(self) -> str:
        return (
            f"{self.count:,} micro-batches; of the last {len(self.batches):,}: {self.total.summary}"
        )


def _shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else format(value, ",")
