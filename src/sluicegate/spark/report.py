"""Reports of a write and of a stream, as text and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .progress.counts import WriteCounts
from .progress.page import report_html, stream_page, write_page

if TYPE_CHECKING:
    import os

    from pyspark.sql.streaming.query import StreamingQuery

MOST_LINES = 20
"""Maximum number of units that a report prints."""


@dataclass(frozen=True, slots=True)
class SparkWriteReport(WriteCounts):
    """The exact counts of a write over all its tasks; shown as a table in terminals and notebooks."""

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained page with the figures and pictures of this run to `path`.

        Text that looks like a secret is masked. The page shows the first five returned rows of each
        error type. Raises `MissingExtra` without Jinja2.
        """
        Path(path).write_text(write_page(self), encoding="utf-8")

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
        """Return HTML for notebooks: the outcomes as a bar, the units as a table, and first
        failures.
        """
        return report_html(self)


@dataclass(slots=True)
class StreamReport:
    """The reports of a stream's last `keep` micro-batches, by number."""

    keep: int = 1000
    count: int = 0
    """Number of micro-batches so far."""
    batches: dict[int, SparkWriteReport] = field(default_factory=dict[int, SparkWriteReport])
    """The reports of the last micro-batches; of a repeated one, only the last report."""

    def add(self, number: int, report: SparkWriteReport) -> None:
        """Add the report of a micro-batch."""
        self.count += 1
        self.batches.pop(number, None)
        self.batches[number] = report
        while len(self.batches) > self.keep:
            del self.batches[next(iter(self.batches))]

    @property
    def total(self) -> SparkWriteReport:
        """Combine the kept micro-batches into one report, with the first dead rows."""
        reports = [*self.batches.values()]
        dead = tuple(row for report in reports for row in report.dead_rows)
        settings = reports[-1].settings if reports else {}
        return SparkWriteReport(
            tuple(unit for report in reports for unit in report.units), dead, settings
        )

    def save_html(self, path: str | os.PathLike[str], query: StreamingQuery | None = None) -> None:
        """Write a page with one row for each micro-batch to `path`, with the progress of `query`."""
        progress: list[Any] = [] if query is None else [*query.recentProgress]
        known = [each if isinstance(each, Mapping) else json.loads(each.json) for each in progress]
        page = stream_page(self.total, self.count, self.batches, known)
        Path(path).write_text(page, encoding="utf-8")

    def __str__(self) -> str:
        return (
            f"{self.count:,} micro-batches; of the last {len(self.batches):,}: {self.total.summary}"
        )
