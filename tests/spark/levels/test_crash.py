"""Processes killed with -9: the driver, and an executor, each in its own Spark, which does not
survive; that takes long, so `make soak` runs them. `test_kills.py` and `test_atomic.py` kill Spark
workers in the default suite, and `test_bucket.py` repeats a micro-batch whose end was not recorded.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
import pyspark
from tests.spark.sql import query

from sluicegate.postgres import PostgresSink
from sluicegate.spark import SparkWriteReport, foreach_batch

from .conftest import INVERSIONS, WHOLE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]  # three Sparks are started

SESSION = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from sluicegate.postgres import PostgresSink
from sluicegate.spark import foreach_batch, write_dataframe

builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.shuffle.io.maxRetries", "0")
java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # they live for seconds
builder = builder.config("spark.driver.extraJavaOptions", java).config("spark.executor.extraJavaOptions", java)
dsn, folder, *levels = sys.argv[1:]
sink = PostgresSink(dsn, table="events", columns=("id", "key"))
"""

STREAM = (
    SESSION
    + """
def die(report):
    if Path(folder, "reports").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    Path(folder, "reports").touch()

spark = builder.master("local[2]").getOrCreate()
read = spark.readStream.schema("id long, key long").option("maxFilesPerTrigger", 1).json(folder + "/*.json")
write = foreach_batch(sink, on_report=die, delivery="bucket", key="key", order_by="id", buckets=3)
query = read.writeStream.foreachBatch(write).option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
query.start().awaitTermination(100)
"""
)

CLUSTER = (
    SESSION
    + """
from sluicegate import WriteResult, send, stack
from sluicegate._core.decorator import WrappingSink

class ExecutorKilled(WrappingSink):
    async def write(self, batch):
        try:
            os.unlink(folder + "/note")
        except FileNotFoundError:
            errors = await send(self.inner, batch)
            return WriteResult.failed(batch, errors) if errors else None
        await send(self.inner, batch.pick(range(len(batch) // 2)))
        with open(f"/proc/{os.getppid()}/stat") as file:  # the daemon's, whose parent is the executor
            os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        errors = await send(self.inner, batch)  # what is left: the worker lives on for a while
        return WriteResult.failed(batch, errors) if errors else None

spark = builder.master("local-cluster[2,1,1024]").getOrCreate()
rows = spark.range(0, 4000, numPartitions=4).selectExpr("id", "id * 7919 % 97 AS key")
upsert = PostgresSink(dsn, table="events", columns=("id", "key"), on_conflict="update", conflict_columns=("id",))
kinds = {"overwrite": {"delivery": "atomic", "mode": "overwrite"}}
for version, level in enumerate(levels):
    Path(folder, "note").touch()
    options = {"key": "key", "order_by": "id", "buckets": 4, "chunk_rows": 200, "app_id": "job", "version": version}
    options |= kinds.get(level, {"delivery": level})
    into = stack(upsert if level == "at_least_once" else sink, lambda inner: ExecutorKilled(inner))
    report = write_dataframe(rows.selectExpr(f"id + {version * 4000} AS id", "key"), into, **options)
    print(json.dumps([report.rows, report.delivered + report.duplicate, Path(folder, "note").exists()]), flush=True)
spark.stop()
"""
)


def run(script: str, *arguments: str, folder: Path) -> tuple[int, str, str]:
    """Run a separate Spark: its exit code and output. All its processes are gone afterwards."""
    program = folder / "program.py"
    program.write_text(script)
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    out, err = folder / "out", folder / "err"
    with out.open("w") as said, err.open("w") as complained:
        process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdout=said,
            stderr=complained,
            env=os.environ | python,
            start_new_session=True,
        )
        try:
            process.wait(900)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out.read_text(), err.read_text()


def test_a_driver_killed_after_the_commit_of_the_sink(spark: Any, dsn: str, tmp_path: Path) -> None:
    """P-T4: Spark has not recorded the second micro-batch and repeats it; another driver finds it
    committed and continues.
    """
    for number in range(3):
        lines = [f'{{"id": {number * 100 + row}, "key": {row % 7}}}\n' for row in range(100)]
        (tmp_path / f"{number}.json").write_text("".join(lines))
    code, _, err = run(STREAM, dsn, str(tmp_path), folder=tmp_path)
    assert code == -signal.SIGKILL, err[-3000:]
    assert query(dsn, WHOLE) == [(200, 200)]
    reports: list[SparkWriteReport] = []
    sink = PostgresSink(dsn, table="events", columns=("id", "key"))
    read = (
        spark.readStream.schema("id long, key long")
        .option("maxFilesPerTrigger", 1)
        .json(f"{tmp_path}/*.json")
    )
    write = foreach_batch(
        sink, on_report=reports.append, delivery="bucket", key="key", order_by="id", buckets=3
    )
    writing = (
        read.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    assert writing.start().awaitTermination(120)
    stored = [(each.delivered + each.duplicate, bool(each.skipped_units)) for each in reports]
    assert stored == [
        (100, True),
        (100, False),
    ]
    assert query(dsn, WHOLE) == [(300, 300)]
    assert query(dsn, INVERSIONS) == [(0,)]


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "levels",
    [("bucket", "atomic"), ("bucket", "atomic", "overwrite", "at_least_once") * 5],
    ids=["two", "twenty"],
)
def test_an_executor_killed_in_the_middle(
    dsn: str, tmp_path: Path, levels: tuple[str, ...]
) -> None:
    """P-T22: executors in separate processes; one is killed with half a batch in its transaction or
    stage, together with its shuffle files.
    """
    query(dsn, "CREATE UNIQUE INDEX ON events (id)")
    work = (
        Path(pyspark.__file__).parent / "work"
    )  # where Spark's workers run, inside the installed package
    before = set(work.iterdir()) if work.exists() else None
    try:
        code, out, err = run(CLUSTER, dsn, str(tmp_path), *levels, folder=tmp_path)
    finally:
        for made in set(work.iterdir()) - (before or set()) if work.exists() else ():
            shutil.rmtree(made, ignore_errors=True)
        if before is None:
            shutil.rmtree(work, ignore_errors=True)
    assert code == 0, err[-3000:]
    assert [json.loads(line) for line in out.splitlines()] == [[4000, 4000, False]] * len(levels)
    kept = (
        max((version for version, level in enumerate(levels) if level == "overwrite"), default=0)
        * 4000
    )
    expected = [(number, number % 4000 * 7919 % 97) for number in range(kept, 4000 * len(levels))]
    assert query(dsn, "SELECT id, key FROM events ORDER BY id") == expected
    assert query(dsn, INVERSIONS) == [(0,)]
