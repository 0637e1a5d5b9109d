"""Writes that a test submits to the cluster: one per level, each with one mishap in its middle.

White box: a decorator around the sink.

Arguments: the DSN, a folder for notes, the mishap, and the levels. The mishap happens once per
level, in the first chunk with `ROW`, when half of it is written; a note (a file) is taken for it.

- `worker`, `executor`: the Python process, or the JVM above it, is killed.
- `driver`: the process group of `spark-submit` is killed. The test submits the program again.
- `slow`: the attempt waits until another attempt of its task has the row, or for 20 s.
- `idle`: nothing; between two writes all executors go.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sluicegate import Batch, Sink, WriteResult, send, stack
from sluicegate._core.decorator import WrappingSink
from sluicegate.postgres import PostgresSink
from sluicegate.spark import write_dataframe

ROWS = 4000
ROW = 1234
SLOW_SECONDS = 20
UPSERT = {"on_conflict": "update", "conflict_columns": ("id",)}


class Struck(WrappingSink[Any]):
    """Has the mishap once."""

    def __init__(self, inner: Sink[Any], folder: str, mishap: str, level: str) -> None:
        super().__init__(inner)
        self.folder = folder
        self.mishap = mishap
        self.note = f"{folder}/{level}"

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        if any(row["id"] == ROW for row in batch):
            if not self.takes_note():
                self.wake_the_first()
            else:
                half = len(batch) // 2
                await send(self.inner, batch.pick(range(half)))
                await asyncio.to_thread(self.happen)
                batch = batch.pick(range(half, len(batch)))  # the process lives on for a while
        errors = await send(self.inner, batch)
        return WriteResult.failed(batch, errors) if errors else None

    def takes_note(self) -> bool:
        with suppress(FileNotFoundError):
            Path(self.note).unlink()
            return True
        return False

    def happen(self) -> None:
        if self.mishap == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.mishap == "executor":
            stat = Path(f"/proc/{os.getppid()}/stat").read_text()  # of the daemon
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        elif self.mishap == "driver":
            os.killpg(int(Path(self.folder, "group").read_text()), signal.SIGKILL)
        elif self.mishap == "slow":
            self.wait_for_another()

    def wait_for_another(self) -> None:
        reader = os.open(f"{self.note}.another", os.O_RDONLY | os.O_NONBLOCK)
        select.select([reader], [], [], SLOW_SECONDS)
        os.close(reader)

    def wake_the_first(self) -> None:
        with suppress(OSError):  # it is gone
            os.write(os.open(f"{self.note}.another", os.O_WRONLY | os.O_NONBLOCK), b".")


def wait_until_idle(spark: SparkSession) -> None:
    """Return when only the driver is left."""
    context: Any = spark.sparkContext
    while context._jsc.sc().getExecutorMemoryStatus().size() > 1:
        context._jvm.java.lang.Thread.sleep(200)


def main(dsn: str, folder: str, mishap: str, *levels: str) -> None:
    """Write at every level; print the counts."""
    Path(folder, "group").write_text(str(os.getpgrp()))
    spark = SparkSession.builder.appName("mishaps").getOrCreate()
    rows = spark.range(0, ROWS, numPartitions=4).selectExpr("id", "id * 7919 % 97 AS key")
    for level in levels:
        options: dict[str, Any] = {"delivery": level}
        if level == "overwrite":
            options = {"delivery": "atomic", "mode": "overwrite"}
        upsert: Any = UPSERT if level == "at_least_once" else {}
        sink = PostgresSink(dsn, table=f"{mishap}_{level}", columns=("id", "key"), **upsert)
        report = write_dataframe(
            rows,
            stack(sink, partial(Struck, folder=folder, mishap=mishap, level=level)),
            key="key",
            order_by="id",
            buckets=4,
            chunk_rows=200,
            app_id=f"mishaps-{mishap}",
            version=1,
            **options,
        )
        counts = report.rows, report.delivered + report.duplicate
        sys.stdout.write(f"{json.dumps([level, *counts])}\n")
        if mishap == "idle":
            wait_until_idle(spark)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
