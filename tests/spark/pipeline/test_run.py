"""Pipelines on a real Spark, into a real PostgreSQL."""

from __future__ import annotations

import csv
import gzip
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("pyspark")

from examples.demo.flights import find_file
from tests.examples.example import printed_on
from tests.spark.sql import query

from sluicegate import Batch, PermanentError, WriteResult
from sluicegate.spark import DeadLettersError, Pipeline, PipelineError
from sluicegate.spark.pipeline import Destination, Source, Step, Stream, Watermark, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.spark import SparkWriteReport

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipelines" / "flights.toml"
ROWS = 2_000


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """The first flights of the year, as a plain CSV."""
    packed, plain = find_file(), tmp_path / "flights.csv"
    if packed.suffix == ".zip":
        with zipfile.ZipFile(packed) as archive:
            text = archive.read("flights.csv")
    else:
        text = (
            gzip.decompress(packed.read_bytes()) if packed.suffix == ".gz" else packed.read_bytes()
        )
    plain.write_bytes(b"".join(text.splitlines(keepends=True)[: ROWS + 1]))
    return plain


@pytest.fixture
def aircraft(embedded_postgres: Any) -> Iterator[str]:
    dsn = str(embedded_postgres.dsn)
    query(dsn, "DROP TABLE IF EXISTS aircraft")
    columns = (
        "tailnum text PRIMARY KEY, at timestamptz, carrier text, origin text, dest text, "
        "flights bigint, CHECK (dest <> 'BQN')"
    )
    query(dsn, f"CREATE TABLE aircraft ({columns})")
    yield dsn
    query(dsn, "DROP TABLE aircraft")


def latest(flights: Path) -> dict[str, tuple[str, int]]:
    """For each aircraft the last destination that the table accepts, and which flight it was."""
    legs: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    with flights.open() as lines:
        for row in csv.DictReader(lines):
            if row["tailnum"] != "NA":
                when = tuple(int(row[name]) for name in ("year", "month", "day", "hour", "minute"))
                legs.setdefault(row["tailnum"], []).append((when, row["dest"]))
    found: dict[str, tuple[str, int]] = {}
    for tailnum, flown in legs.items():
        taken = [
            (dest, number) for number, (_, dest) in enumerate(sorted(flown), 1) if dest != "BQN"
        ]
        if taken:
            found[tailnum] = taken[-1]
    return found


def test_the_example_keeps_the_latest_flight_of_each_aircraft(
    spark: Any, flights: Path, aircraft: str, tmp_path: Path
) -> None:
    """P-T9, P-T12: in order per aircraft, in chunks that split its flights; refused rows are kept
    with their reason.
    """
    environment = {
        "FLIGHTS": str(flights),
        "PG_DSN": aircraft,
        "REFUSED": str(tmp_path / "refused.jsonl"),
    }
    reports: list[SparkWriteReport] = []
    example = Pipeline.read(EXAMPLE)
    cut = replace(example, write=replace(cast("Write", example.write), chunk_rows=500))
    report = cut.run(spark, environment=environment, on_report=reports.append)
    refused = [
        line for file in tmp_path.glob("refused-*.jsonl") for line in file.read_text().splitlines()
    ]
    assert report.last is reports[0]
    assert (report.writes, report.dead_letters, report.failed) == (1, len(refused), 0)
    assert report.delivered == report.rows - len(refused)
    assert refused
    assert all("BQN" in line for line in refused)
    stored = {
        tailnum: (dest, count)
        for tailnum, dest, count in query(aircraft, "SELECT tailnum, dest, flights FROM aircraft")
    }
    assert stored == latest(flights)
    assert spark.catalog.tableExists("legs") is False, "the views are the run's own"


def test_the_flights_of_the_guide(spark: Any, embedded_postgres: Any, tmp_path: Path) -> None:
    """The files on the page, and the counts that it states."""
    dsn = str(embedded_postgres.dsn)
    query(dsn, f"DROP TABLE IF EXISTS aircraft; {(EXAMPLE.parent / 'aircraft.sql').read_text()}")
    environment = {
        "FLIGHTS": str(EXAMPLE.parent / "flights.csv"),
        "PG_DSN": dsn,
        "REFUSED": str(tmp_path / "refused.jsonl"),
    }
    report = Pipeline.read(EXAMPLE).run(spark, environment=environment)
    assert report.last is not None
    (said,) = [
        text for text in printed_on("how-to/run-a-pipeline.md") if text.startswith("write 1: ")
    ]
    assert f"write 1: {report.last}".startswith(said.split(" tasks,")[0])
    assert query(dsn, "SELECT tailnum, dest, flights FROM aircraft ORDER BY tailnum") == [
        ("N14228", "MIA", 2),
        ("N24211", "LAS", 3),
    ]
    query(dsn, "DROP TABLE aircraft")


@pytest.mark.long
def test_a_write_of_the_same_version_is_made_once(
    spark: Any, flights: Path, aircraft: str, tmp_path: Path
) -> None:
    """P-T6, with the pipeline's own name and a version from the environment."""
    example = Pipeline.read(EXAMPLE)
    once = replace(
        example, write=replace(cast("Write", example.write), delivery="bucket", version="${DAY}")
    )
    environment = {
        "FLIGHTS": str(flights),
        "PG_DSN": aircraft,
        "REFUSED": str(tmp_path / "refused.jsonl"),
        "DAY": "20130131",
    }
    first, again = (once.run(spark, environment=environment) for _ in range(2))
    assert first.last is not None
    assert again.last is not None
    assert (first.last.skipped_units, again.last.skipped_units) == (0, 4)
    assert again.delivered == 0
    assert (again.rows, again.duplicate, again.dead_letters) == (
        first.rows,
        first.delivered,
        first.dead_letters,
    )
    assert query(
        aircraft, "SELECT DISTINCT version FROM sluicegate_ledger WHERE application = 'flights'"
    ) == [(20130131,)]
    query(aircraft, "DELETE FROM sluicegate_ledger WHERE application = 'flights'")


def test_a_table_is_replaced_as_a_whole(spark: Any, tmp_path: Path, embedded_postgres: Any) -> None:
    """P-T14, through a pipeline; a second run of the version changes nothing."""
    dsn = str(embedded_postgres.dsn)
    query(dsn, "DROP TABLE IF EXISTS numbers")
    query(dsn, "CREATE TABLE numbers (id bigint PRIMARY KEY, at timestamptz)")
    query(dsn, "INSERT INTO numbers SELECT id, now() FROM generate_series(1000, 1010) AS id")
    (tmp_path / "in").mkdir()
    put(tmp_path, "a", range(10))
    whole = pipeline(
        sinks={"numbers": Destination(kind="postgres", arguments={"dsn": dsn, "table": "numbers"})},
        write=Write(view="even", sink="numbers", delivery="atomic", mode="overwrite", version=1),
    )
    first, again = (whole.run(spark, environment={"HERE": str(tmp_path)}) for _ in range(2))
    assert (first.rows, first.delivered, again.delivered, again.duplicate) == (5, 5, 0, 5)
    assert again.last is not None
    assert again.last.skipped_units == 1
    assert query(dsn, "SELECT id FROM numbers ORDER BY id") == [(0,), (2,), (4,), (6,), (8,)]
    query(dsn, "DROP TABLE numbers")
    query(dsn, "DELETE FROM sluicegate_ledger WHERE application = 'numbers'")


def pipeline(**changes: Any) -> Pipeline:
    parts: dict[str, Any] = {
        "name": "numbers",
        "sources": {
            "lines": Source(format="csv", path="${HERE}/in", schema="id BIGINT, at TIMESTAMP")
        },
        "steps": {"even": Step(sql="SELECT id, at FROM lines WHERE id % 2 = 0")},
        "sinks": {"numbers": Destination(kind="file", arguments={"path": "${HERE}/numbers.jsonl"})},
        "write": Write(view="even", sink="numbers"),
        **changes,
    }
    return Pipeline(**parts)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def put(here: Path, name: str, ids: range) -> None:
    (here / "in" / f"{name}.csv").write_text(
        "".join(f"{number},2026-01-01 00:00:00\n" for number in ids)
    )


def written(here: Path) -> list[int]:
    return sorted(
        int(line.split(":")[1].split(",")[0])
        for file in here.glob("numbers-*.jsonl")
        for line in file.read_text().splitlines()
    )


def test_a_stream_goes_on_where_it_was(spark: Any, here: Path) -> None:
    streamed = pipeline(stream=Stream(checkpoint="${HERE}/checkpoint", trigger="available_now"))
    environment = {"HERE": str(here)}
    put(here, "a", range(10))
    assert streamed.run(spark, environment=environment).rows == 5
    assert streamed.run(spark, environment=environment).rows == 0
    put(here, "b", range(10, 20))
    report = streamed.run(spark, environment=environment)
    assert (report.rows, report.delivered, report.writes) == (5, 5, 1)
    assert written(here) == [*range(0, 20, 2)]


def test_a_stream_ends_between_two_micro_batches(spark: Any, here: Path) -> None:
    put(here, "a", range(10))
    stop = threading.Event()
    streamed = pipeline(
        sources={
            "lines": Source(
                format="csv",
                path="${HERE}/in",
                schema="id BIGINT, at TIMESTAMP",
                watermark=Watermark(column="at", delay="1 hour"),
                dedupe="id",
            )
        },
        stream=Stream(checkpoint="${HERE}/checkpoint"),
    )
    report = streamed.run(
        spark, environment={"HERE": str(here)}, on_report=lambda _: stop.set(), stop=stop
    )
    assert report.rows == 5
    assert report.writes >= 1
    assert written(here) == [0, 2, 4, 6, 8]


def test_a_micro_batch_that_begins_too_late_writes_nothing(spark: Any, here: Path) -> None:
    """Its rows are left to the next run; none is written without being counted."""
    for name in "abc":
        put(here, name, range(ord(name) * 10, ord(name) * 10 + 10))
    stop = threading.Event()
    lines = Source(
        format="csv",
        path="${HERE}/in",
        schema="id BIGINT, at TIMESTAMP",
        options={"maxFilesPerTrigger": 1},
    )
    streamed = pipeline(sources={"lines": lines}, stream=Stream(checkpoint="${HERE}/checkpoint"))
    environment = {"HERE": str(here)}
    first = streamed.run(spark, environment=environment, on_report=lambda _: stop.set(), stop=stop)
    assert (first.writes, first.rows, len(written(here))) == (1, 5, 5)
    rest = pipeline(
        sources={"lines": lines},
        stream=Stream(checkpoint="${HERE}/checkpoint", trigger="available_now"),
    ).run(spark, environment=environment)
    assert (rest.rows, len(set(written(here)))) == (10, 15)


def refuse(batch: Batch[Any]) -> WriteResult:
    return WriteResult.failed(batch, dict.fromkeys(range(len(batch)), PermanentError("no")))


def test_what_a_write_raises_comes_out_of_a_stream_as_it_is(spark: Any, here: Path) -> None:
    put(here, "a", range(10))
    streamed = pipeline(
        sinks={"numbers": refuse},
        stream=Stream(checkpoint="${HERE}/checkpoint", trigger="available_now"),
    )
    with pytest.raises(
        DeadLettersError, match="5 of 5 rows failed for good; the first: PermanentError: no"
    ):
        streamed.run(spark, environment={"HERE": str(here)})


def test_what_spark_refuses_is_a_mistake_with_its_place(spark: Any, here: Path) -> None:
    """Before a row is read; a step that reads a refused one is not blamed."""
    put(here, "a", range(10))
    steps = {
        "a": Step(sql="SELECT idd FROM lines"),
        "b": Step(sql="SELECT nothing(at) FROM lines"),
        "even": Step(sql="SELECT id FROM a"),
    }
    with pytest.raises(PipelineError) as caught:
        pipeline(steps=steps).run(spark, environment={"HERE": str(here)})
    assert [mistake.path for mistake in caught.value.mistakes] == [
        ("steps", "a", "sql"),
        ("steps", "b", "sql"),
    ]
    assert written(here) == []
    with pytest.raises(PipelineError, match=r"write\.key: lines has no column 'nobody'"):
        pipeline(steps={}, write=Write(view="lines", sink="numbers", key="nobody")).run(
            spark, environment={"HERE": str(here)}
        )


def test_nothing_starts_while_there_are_mistakes(here: Path) -> None:
    with pytest.raises(PipelineError, match="the environment variable HERE is not set"):
        pipeline().run(environment={})
