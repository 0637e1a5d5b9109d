"""An executor killed during a write into Kafka, in its own Spark: `make soak`."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")
import pyspark
from tests.spark.kafka.kafka_help import consume
from tests.spark.levels.test_crash import run

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

CLUSTER = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from sluicegate import WriteResult, send, stack
from sluicegate._core.decorator import WrappingSink
from sluicegate.kafka import KafkaSink
from sluicegate.spark import write_dataframe

builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.shuffle.io.maxRetries", "0")
bootstrap, topic, folder = sys.argv[1:]

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
        errors = await send(self.inner, batch.pick(range(len(batch) // 2, len(batch))))
        return WriteResult.failed(batch, errors) if errors else None

Path(folder, "note").touch()
spark = builder.master("local-cluster[2,1,1024]").getOrCreate()
rows = spark.range(0, 4000, numPartitions=4).selectExpr("id", "id * 7919 % 97 AS key")
sink = stack(KafkaSink(topic, bootstrap=bootstrap, key="key"), lambda inner: ExecutorKilled(inner))
report = write_dataframe(rows, sink, key="key", order_by="id", buckets=4, chunk_rows=200)
print(json.dumps([report.rows, report.delivered, Path(folder, "note").exists()]), flush=True)
spark.stop()
"""


def test_an_executor_killed_half_way_loses_nothing(
    embedded_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """P-T22 at least once: every record is present; some of the killed executor's records are
    repeated.
    """
    topic = f"killed-{uuid4().hex}"
    embedded_kafka.create_topic(topic, partitions=3)
    work = Path(pyspark.__file__).parent / "work"  # the folder in which Spark's workers run
    before = set(work.iterdir()) if work.exists() else None
    try:
        code, out, err = run(
            CLUSTER, embedded_kafka.bootstrap, topic, str(tmp_path), folder=tmp_path
        )
    finally:
        for made in set(work.iterdir()) - (before or set()) if work.exists() else ():
            shutil.rmtree(made, ignore_errors=True)
        if before is None:
            shutil.rmtree(work, ignore_errors=True)
    assert code == 0, err[-3000:]
    assert json.loads(out.splitlines()[-1]) == [4000, 4000, False]
    found = [json.loads(record.value) for record in consume(embedded_kafka.bootstrap, topic)]
    counts = Counter(row["id"] for row in found)
    assert set(counts) == set(range(4000))
    assert 0 < len(found) - 4000 < 4000
    assert max(counts.values()) == 2
    for key in range(97):
        ids = [*dict.fromkeys(row["id"] for row in found if row["key"] == key)]
        assert ids == sorted(ids)
