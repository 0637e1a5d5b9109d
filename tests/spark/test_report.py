"""The report of a write: as text, in a notebook, and while the write runs.

White box: the parts of a report, made by hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from sluicegate import Batch, PermanentError, WriteResult
from sluicegate.spark import PipelineReport, SparkWriteReport, foreach_batch, write_dataframe
from sluicegate.spark.report import StreamReport, UnitReport

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
    """In the report of a write, of a stream and of a pipeline, as in their tables."""
    again = SparkWriteReport(
        (
            UnitReport(0, rows=10, duplicate=10, skipped=True),
            UnitReport(1, rows=5, delivered=4, duplicate=1),
        )
    )
    assert (again.delivered, again.duplicate) == (4, 11)
    counts = "15 rows: 4 delivered, 11 duplicate, 0 dead letters, 0 retries"
    assert str(again).startswith(counts)
    history = StreamReport()
    history.add(7, again)
    assert str(history).endswith(f"{counts}, in 2 tasks")
    assert str(PipelineReport(name="p").after(again)) == f"p: {counts}, in 1 write"


def test_a_report_without_rows_prints() -> None:
    empty = "0 rows: 0 delivered, 0 dead letters, 0 retries, in"
    assert str(SparkWriteReport(())) == f"{empty} 0 tasks"
    assert str(SparkWriteReport((UnitReport(partition=0),))).startswith(f"{empty} 1 tasks\n")
    assert str(StreamReport()).endswith(f"{empty} 0 tasks")


# -- on a real Spark -------------------------------------------------------------------------------


def odd_hundreds_fail(batch: Batch[Any]) -> WriteResult:
    return WriteResult.failed(
        batch, {i: PermanentError("odd") for i, row in enumerate(batch) if row["id"] % 200 == 100}
    )


def test_a_write_is_watched(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """P-T12: the bar ends with the counts of the report; the caller's job group is unchanged."""
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "mine")
    df = spark.range(0, 1000, numPartitions=3)
    report = write_dataframe(
        df, odd_hundreds_fail, chunk_rows=100, dead_letters="return", progress=True
    )
    shown = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert "3/3 tasks, 1,000 rows" in shown
    assert "5 dead letters" in shown
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    write_dataframe(df, odd_hundreds_fail, max_dead_letters=5)
    assert capsys.readouterr().err == ""
    assert [unit.began_at > 0 for unit in report.units] == [True] * 3


@pytest.mark.long
def test_a_stream_keeps_its_tallies(spark: Any, tmp_path: Path) -> None:
    """Per micro-batch, under the numbers of the query's own progress."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.json").write_text(
            "".join(f'{{"id": {100 * row}}}\n' for row in range(10))
        )
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(source))
    write = foreach_batch(odd_hundreds_fail, dead_letters="return")
    query = (
        rows.writeStream.foreachBatch(write)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    assert query.awaitTermination(120)
    assert [
        (number, report.rows, report.failed) for number, report in write.report.batches.items()
    ] == [(0, 10, 5), (1, 10, 5), (2, 10, 5)]
    assert str(write.report).startswith(
        "3 micro-batches; of the last 3: 30 rows: 15 delivered, 15 dead letters"
    )
    assert {each["batchId"] for each in query.recentProgress} == {*write.report.batches}


def test_a_stream_keeps_the_last_batches_only() -> None:
    stream = StreamReport(keep=2)
    for number in (0, 1, 1, 2):
        stream.add(number, REPORT)
    assert (stream.count, [*stream.batches]) == (4, [1, 2])
    assert stream.total.rows == 400
