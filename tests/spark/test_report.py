"""The report of a write: as text, in a notebook, as a page, and while the write runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from sluicegate import Batch, PermanentError, WriteResult
from sluicegate.spark import (
    DeadRow,
    SparkWriteReport,
    StreamReport,
    UnitReport,
    foreach_batch,
    write_dataframe,
)
from sluicegate.spark.pipeline import PipelineReport
from sluicegate.spark.progress.bars import BarLayer, bars, short
from sluicegate.spark.progress.course import MOST, Course, rates
from sluicegate.spark.progress.page import covered

if TYPE_CHECKING:
    from pathlib import Path


def unit(number: int, **figures: Any) -> UnitReport:
    began = 1_000_000.0 + number
    marks = ((began + 1.0, 50), (began + 2.0, 100))
    told: dict[str, Any] = {
        "rows": 100,
        "delivered": 100,
        "chunks": 2,
        "seconds": 2.0,
        "began_at": began,
        "marks": marks,
        **figures,
    }
    return UnitReport(partition=number, **told)


DEAD = (
    DeadRow(
        {"id": 1, "note": "<script>alert(1)</script>"},
        "PermanentError",
        "no such place: postgresql://me:hunter2@db/shop",
        0,
    ),
    DeadRow({"id": 2, "password": "hunter2"}, "KeyStopped", "behind 1", 0),
)
REPORT = SparkWriteReport(
    (unit(1, delivered=90, failed=8, dead_lettered=2, stopped=1, retries=3), unit(0)),
    DEAD,
    {
        "sink": "PostgresSink(db/shop, table='events')",
        "url": "postgresql://me:hunter2@db/shop",
        "api_key": "api_key=hunter2",
    },
)


class Tags(HTMLParser):
    """Checks that opened tags are closed, and records what a browser would fetch or run."""

    void = frozenset({"meta", "line", "rect", "i"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.void:
            self.open.append(tag)
        self.fetched += [
            f"{tag} {name}" for name, _ in attrs if name in {"src", "href"} or name.startswith("on")
        ]
        self.fetched += [tag] if tag in {"script", "link", "iframe", "img"} else []

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


def page_of(report: SparkWriteReport | StreamReport, folder: Path, *more: Any) -> str:
    report.save_html(folder / "report.html", *more)
    return (folder / "report.html").read_text(encoding="utf-8")


def pictures(page: str) -> list[ET.Element]:
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_a_report_prints_its_units() -> None:
    first, head, *units = str(REPORT).splitlines()
    assert (
        first == "200 rows: 190 delivered, 10 dead letters, 3 retries, 1 behind a failed row, in 2 "
        "tasks, 67 rows/s"
    )
    assert head.split() == [*REPORT.table()[0]]
    assert [line.split()[0] for line in units] == ["0", "1"]
    many = str(SparkWriteReport(tuple(map(unit, range(30)))))
    assert many.endswith("and 10 more")


def test_rows_of_a_skipped_write_are_duplicates_and_not_delivered(tmp_path: Path) -> None:
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
    assert re.search(r"duplicate\W[^0-9]*11\b", page_of(again, tmp_path))


def test_a_notebook_shows_outcomes_units_and_the_first_dead_rows() -> None:
    shown = REPORT._repr_html_()
    assert Tags(shown).open == []
    assert "failed 8" in shown
    assert "&lt;script&gt;" in shown
    assert "hunter2" not in shown


def test_a_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    page = page_of(REPORT, tmp_path)
    tags = Tags(page)
    assert tags.open == []
    assert tags.fetched == []
    assert "url(" not in page
    assert "&lt;script&gt;" in page


def test_a_page_shows_every_figure(tmp_path: Path) -> None:
    page = page_of(REPORT, tmp_path)
    for told in (
        "<b>200</b>",
        "<b>190</b>",
        "failed 8 (4 %)",
        "dead-lettered 2 (1 %)",
        "PermanentError, 1 row",
        "KeyStopped, 1 row",
    ):
        assert told in page
    assert "The dead-letter sink has 2 of them" in page
    labels = [picture.get("aria-label") for picture in pictures(page)]
    assert labels == ["rows per second over time", "seconds", "rows", "retries"]
    titles = "".join(pictures(page)[2].itertext())
    assert "1\ndelivered: 90\nduplicate: 0\ndead_lettered: 2\nfailed: 8" in titles


def test_pages_cover_secrets(tmp_path: Path) -> None:
    """P-T18: in settings, rows and messages."""
    page = page_of(REPORT, tmp_path)
    assert "hunter2" not in page
    assert "postgresql://***@db/shop" in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@h/x?a=1", "postgresql://***@h/x?a=1"),
        ("http://h/x", "http://h/x"),
        ("{'password': 'a b', 'n': 1}", "{'password': ***, 'n': 1}"),
        ('{"db_password": "p", "n": 1}', '{"db_password": ***, "n": 1}'),
        ("Authorization: Bearer abc.def, x", "Authorization: ***, x"),
        ("?api_key=abc&n=1", "?api_key=***&n=1"),
        ("the token was refused", "the token was refused"),
    ],
)
def test_what_looks_like_a_secret_is_covered(text: str, shown: str) -> None:
    assert covered(text) == shown


def test_a_report_without_rows_is_a_page_too(tmp_path: Path) -> None:
    for report in (
        SparkWriteReport(()),
        SparkWriteReport((UnitReport(partition=0),)),
        StreamReport(),
    ):
        assert Tags(page_of(report, tmp_path)).open == []
        assert str(report)


# -- over time -------------------------------------------------------------------------------------


marked = st.lists(st.tuples(st.floats(0.01, 5.0), st.integers(0, 100)), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.floats(0, 10), marked), min_size=1, max_size=6), st.integers(1, 60))
def test_no_row_is_lost_on_the_way_into_the_picture(
    courses: list[tuple[float, list[tuple[float, int]]]], bins: int
) -> None:
    made: list[tuple[float, list[tuple[float, int]]]] = []
    total = 0
    for began, steps in courses:
        at, rows, marks = began, 0, list[tuple[float, int]]()
        for seconds, more in steps:
            at, rows = at + seconds, rows + more
            marks.append((at, rows))
        made.append((began, marks))
        total += rows
    width, speeds = rates(made, bins)
    assert len(speeds) == bins
    assert sum(speed * width for speed in speeds) == pytest.approx(total, abs=1e-6 * total + 1e-9)


def test_a_course_keeps_a_bounded_number_of_marks() -> None:
    course = Course()
    for rows in range(10_000):
        course.mark(rows)
    marks = course.marks(10_000)
    assert MOST // 2 <= len(marks) <= MOST + 1
    assert [rows for _, rows in marks] == sorted(rows for _, rows in marks)
    assert marks[-1][1] == 10_000
    course.begin_again()
    assert len(course.marks(0)) == 1


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50))
@example([5e-324])
@example([2.0**-1020])
def test_bars_stay_inside_their_picture(values: list[float]) -> None:
    picture = ET.fromstring(
        bars("t", [str(n) for n in range(len(values))], BarLayer("a", "plain", values))
    )
    for bar in picture.iter("rect"):
        assert float(bar.get("y", "-1")) >= 9.9
        assert float(bar.get("height", "-1")) >= 0


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0, 950, 1200, 30e6, 0.25)] == [
        "0",
        "950",
        "1.2k",
        "30M",
        "0.25",
    ]


# -- on a real Spark -------------------------------------------------------------------------------


def odd_hundreds_fail(batch: Batch[Any]) -> WriteResult:
    return WriteResult.failed(
        batch, {i: PermanentError("odd") for i, row in enumerate(batch) if row["id"] % 200 == 100}
    )


def test_a_write_is_watched_and_leaves_a_page(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert [len(unit.marks) > 3 and unit.began_at > 0 for unit in report.units] == [True] * 3
    assert report.settings["chunk_rows"] == "100"
    page = page_of(report, tmp_path)
    assert "rows per second over time" in page
    assert "FunctionSink(odd_hundreds_fail)" in page


def test_a_stream_keeps_its_tallies(spark: Any, tmp_path: Path) -> None:
    """Per micro-batch, besides the query's own progress."""
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
    page = page_of(write.report, tmp_path, query)
    assert [picture.get("aria-label") for picture in pictures(page)] == [
        "rows",
        "seconds of each micro-batch",
        "query",
        "input",
    ]
    assert "".join(pictures(page)[0].itertext()).count("delivered: ") == 3


def test_a_stream_keeps_the_last_batches_only() -> None:
    stream = StreamReport(keep=2)
    for number in (0, 1, 1, 2):
        stream.add(number, REPORT)
    assert (stream.count, [*stream.batches]) == (4, [1, 2])
    assert stream.total.rows == 400
