"""The report of a write: as text, and in a notebook.

White box: the parts of a report, made by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from sluicegate import Batch, PermanentError, WriteResult
from sluicegate.spark import PipelineReport, SparkWriteReport, foreach_batch
from sluicegate.spark.report import UnitReport

if TYPE_CHECKING:
    from pathlib import Path


def unit(number: int, **figures: Any) -> UnitReport:
    told: dict[str, Any] = {
        "rows": 100,
        "delivered": 100,
        "chunks": 2,
        "seconds": 2.0,
        "began_at": 1_000_000.0 + number,
        **figures,
    }
    return UnitReport(partition=number, **told)


REPORT = SparkWriteReport(
    (unit(1, delivered=90, failed=8, dead_lettered=2, stopped=1, retries=3), unit(0))
)


def test_a_report_prints_its_units_in_terminals_and_notebooks() -> None:
    first, head, *units = str(REPORT).splitlines()
    assert (
        first == "200 rows: 190 delivered, 10 dead letters, 3 retries, 1 behind a failed row, in 2 "
        "tasks, 67 rows/s"
    )
    assert head.split() == [*REPORT.table()[0]]
    assert [line.split()[0] for line in units] == ["0", "1"]
    assert REPORT._repr_html_() == f"<pre>{REPORT}</pre>"
    many = str(SparkWriteReport(tuple(map(unit, range(30)))))
    assert many.endswith("and 10 more")


def test_rows_of_a_skipped_write_are_duplicates_and_not_delivered() -> None:
    """In the report of a write and of a pipeline, as in their tables."""
    again = SparkWriteReport(
        (
            UnitReport(0, rows=10, duplicate=10, skipped=True),
            UnitReport(1, rows=5, delivered=4, duplicate=1),
        )
    )
    assert (again.delivered, again.duplicate) == (4, 11)
    counts = "15 rows: 4 delivered, 11 duplicate, 0 dead letters, 0 retries"
    assert str(again).startswith(counts)
    assert str(PipelineReport(name="p").after(again)) == f"p: {counts}, in 1 write"


def test_a_report_without_rows_prints() -> None:
    empty = "0 rows: 0 delivered, 0 dead letters, 0 retries, in"
    assert str(SparkWriteReport(())) == f"{empty} 0 tasks"
    assert str(SparkWriteReport((UnitReport(partition=0),))).startswith(f"{empty} 1 tasks\n")


# -- on a real Spark -------------------------------------------------------------------------------


def odd_hundreds_fail(batch: Batch[Any]) -> WriteResult:
    return WriteResult.failed(
        batch, {i: PermanentError("odd") for i, row in enumerate(batch) if row["id"] % 200 == 100}
    )


@pytest.mark.long
def test_a_stream_keeps_its_tallies(spark: Any, tmp_path: Path) -> None:
    """One report per micro-batch."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.json").write_text(
            "".join(f'{{"id": {100 * row}}}\n' for row in range(10))
        )
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(source))
    reports: list[SparkWriteReport] = []
    write = foreach_batch(odd_hundreds_fail, dead_letters="return", on_report=reports.append)
    query = (
        rows.writeStream.foreachBatch(write)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    assert query.awaitTermination(120)
    assert [(report.rows, report.delivered, report.failed) for report in reports] == [
        (10, 5, 5)
    ] * 3
