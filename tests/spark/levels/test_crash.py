"""A driver killed with -9, in a Spark of its own, since that does not survive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from penstock.sinks import PostgresSink
from penstock.spark import SparkWriteReport, foreach_batch

from .conftest import INVERSIONS, WHOLE, ask

pytestmark = pytest.mark.timeout(400)  # a second Spark is started

STREAM = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from penstock.sinks import PostgresSink
from penstock.spark import foreach_batch

dsn, folder = sys.argv[1:]

def die(report):
    if Path(folder, "reports").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    Path(folder, "reports").touch()

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
read = spark.readStream.schema("id long, key long").option("maxFilesPerTrigger", 1).json(folder + "/*.json")
sink = PostgresSink(dsn, table="events", columns=("id", "key"))
write = foreach_batch(sink, on_report=die, delivery="bucket", key="key", order_by="id", buckets=3)
query = read.writeStream.foreachBatch(write).option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
query.start().awaitTermination(100)
"""


def run(script: str, *arguments: str, folder: Path) -> tuple[int, str, str]:
    """A Spark of its own: how it ended, and what it said. Everything that it has started is gone afterwards."""
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
            process.wait(300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out.read_text(), err.read_text()


def test_a_driver_killed_after_the_commit_of_the_sink(spark: Any, dsn: str, tmp_path: Path) -> None:
    """P-T4: Spark has not noted the second micro-batch, and runs it again; another driver finds it committed, and goes on."""
    for number in range(3):
        lines = [f'{{"id": {number * 100 + row}, "key": {row % 7}}}\n' for row in range(100)]
        (tmp_path / f"{number}.json").write_text("".join(lines))
    code, _, err = run(STREAM, dsn, str(tmp_path), folder=tmp_path)
    assert code == -signal.SIGKILL, err[-3000:]
    assert ask(dsn, WHOLE) == [(200, 200)]
    reports: list[SparkWriteReport] = []
    sink = PostgresSink(dsn, table="events", columns=("id", "key"))
    read = spark.readStream.schema("id long, key long").option("maxFilesPerTrigger", 1).json(f"{tmp_path}/*.json")
    write = foreach_batch(sink, on_report=reports.append, delivery="bucket", key="key", order_by="id", buckets=3)
    query = read.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert query.start().awaitTermination(120)
    assert [(report.delivered, bool(report.skipped_units)) for report in reports] == [(100, True), (100, False)]
    assert ask(dsn, WHOLE) == [(300, 300)]
    assert ask(dsn, INVERSIONS) == [(0,)]
