"""P-T23 under one PySpark: what works everywhere works, and a feature that this version lacks
raises an error that names an alternative.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession

from sluicegate import ConfigError, Retry, Timeout, stack
from sluicegate.files import FileSink
from sluicegate.spark import foreach_batch, register, write_dataframe

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def session() -> Any:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
    )
    builder = builder.config("spark.sql.session.timeZone", "+05:30")  # needs Arrow 19 to be read
    spark = (
        builder.config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Folder:
    """The folder that a sink writes to, and its contents."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self.sink = stack(FileSink(path / "rows.jsonl", per_process=True), Timeout(20.0), Retry())

    def ids(self) -> list[int]:
        """The ids of all written rows."""
        lines = [
            line
            for path in self.path.glob("rows-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return sorted(json.loads(line)["id"] for line in lines)


def error_of(call: Callable[[], object]) -> str:
    """The error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def a_dataframe(spark: Any, folder: Folder) -> None:
    report = write_dataframe(spark.range(0, 100, numPartitions=3), folder.sink, key="id", buckets=2)
    assert (report.rows, report.delivered, report.dead_letters) == (100, 100, 0), report
    assert folder.ids() == [*range(100)]


def micro_batches(spark: Any, folder: Folder) -> None:
    reports: list[int] = []
    writing = stream(spark, folder.path).writeStream.foreachBatch(
        foreach_batch(
            folder.sink, key="id", on_report=lambda report: reports.append(report.delivered)
        )
    )
    run(writing, folder.path)
    assert reports == [20], reports
    assert folder.ids() == [*range(20)]


def by_name(spark: Any, folder: Folder) -> None:
    if VERSION < (4, 0):
        told = error_of(lambda: register(spark, "here", folder.sink))
        assert told.startswith(f"{ConfigError.__name__}: pyspark='{pyspark.__version__}'"), told
        assert "use write_dataframe and foreach_batch" in told, told
        return
    here = register(spark, "here", folder.sink)
    spark.range(50).write.format("here").mode("append").save()
    assert here.report is not None
    assert here.report.delivered == 50
    assert folder.ids() == [*range(50)]


def by_options(spark: Any, folder: Folder) -> None:
    writing = (
        spark.range(50)
        .write.format("sluicegate")
        .option("sink", "file")
        .option("path", str(folder.path / "rows.jsonl"))
        .mode("append")
    )
    if VERSION < (4, 0):
        assert "DATA_SOURCE_NOT_FOUND" in error_of(writing.save)
        return
    writing.save()
    assert folder.ids() == [*range(50)]


def a_stream_by_options(spark: Any, folder: Folder) -> None:
    writing = (
        stream(spark, folder.path)
        .writeStream.format("sluicegate")
        .option("sink", "file")
        .option("path", str(folder.path / "rows.jsonl"))
    )
    if VERSION < (4, 1):
        told = error_of(lambda: run(writing, folder.path))
        assert ("foreach_batch" if VERSION >= (4, 0) else "DATA_SOURCE_NOT_FOUND") in told, told
        return
    run(writing, folder.path)
    assert folder.ids() == [*range(20)]


def stream(spark: Any, folder: Path) -> Any:
    """One micro-batch of 20 rows."""
    (folder / "in").mkdir()
    (folder / "in" / "rows.json").write_text("\n".join(f'{{"id": {row}}}' for row in range(20)))
    return spark.readStream.schema("id long").json(str(folder / "in"))


def run(writing: Any, folder: Path) -> None:
    query = (
        writing.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def main() -> None:
    spark = session()
    with TemporaryDirectory() as folder:
        for way in (a_dataframe, micro_batches, by_name, by_options, a_stream_by_options):
            way(spark, Folder(Path(folder, way.__name__)))
            sys.stdout.write(f"  {pyspark.__version__}: {way.__name__.replace('_', ' ')}\n")
    spark.stop()


if __name__ == "__main__":
    main()
