"""The driver of the end-to-end test: windows over a Kafka topic into a PostgreSQL table, in a
process that is killed and restarted.

White box: a sink around a sink, on the base of the package's own.

Its only argument is a `Plan` as JSON. It reads lines from its input: on "drain" it prints "drained"
once everything in Kafka is processed; at the end of its input it ends. With `dies_at` it kills its
own process group, so driver, JVM and workers at once, before that write of a worker.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import asdict, dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sluicegate import Retry, Timeout, WriteResult, send, stack
from sluicegate._core.decorator import WrappingSink
from sluicegate.postgres import PostgresSink
from sluicegate.spark import connector_jars, foreach_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from sluicegate import Batch, Sink

WINDOW = "1 minute"
DELAY = "30 seconds"
BUCKETS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a driver."""

    bootstrap: str
    topic: str
    dsn: str
    checkpoint: str
    delivery: Literal["at_least_once", "bucket"]
    records_per_batch: int
    chunk_rows: int = 50_000
    dies_at: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Dies(WrappingSink[Any]):
    """Kills the driver and its whole process group before this write of the worker."""

    def __init__(self, inner: Sink[Any], *, at: int, group: int) -> None:
        super().__init__(inner)
        self.at = at
        self.group = group
        self.writes = [0]  # shared with the copies that transactions make of it

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        self.writes[0] += 1
        if self.writes[0] == self.at:
            os.killpg(self.group, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)  # Spark gives its workers their own group
        return WriteResult.failed(batch, await send(self.inner, batch))


def windows(events: DataFrame) -> DataFrame:
    """The number of a key's events in each closed window, and their amount."""
    parsed = events.select(
        f.from_json(f.col("value").cast("string"), "key STRING, at TIMESTAMP, amount BIGINT").alias(
            "e"
        )
    ).select("e.*")
    counted = (
        parsed.withWatermark("at", DELAY)
        .groupBy("key", f.window("at", WINDOW).alias("window"))
        .agg(f.count("*").alias("events"), f.sum("amount").alias("amount"))
    )
    return counted.select("key", f.col("window.start").alias("starts"), "events", "amount")


def main(plan: Plan) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("windows")
        .config("spark.jars", connector_jars("kafka"))
        .config(
            "spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        )  # it runs for seconds
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    target: Sink[Any] = PostgresSink(
        plan.dsn,
        table="windows",
        columns=("key", "starts", "events", "amount"),
        on_conflict="update",
        conflict_columns=("key", "starts"),
    )
    sink = stack(target, Timeout(20.0), Retry())
    if plan.dies_at is not None:
        sink = Dies(sink, at=plan.dies_at, group=os.getpgrp())
    events = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", plan.bootstrap)
        .option("subscribe", plan.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", plan.records_per_batch)
        .load()
    )
    query = (
        windows(events)
        .writeStream.outputMode("append")
        .option("checkpointLocation", plan.checkpoint)
        .foreachBatch(
            foreach_batch(
                sink,
                key="key",
                order_by="starts",
                buckets=BUCKETS,
                max_tasks=1,
                max_in_flight=1,
                chunk_rows=plan.chunk_rows,
                delivery=plan.delivery,
            )
        )
        .start()
    )
    Thread(target=watch, args=(query,), daemon=True).start()
    for _ in sys.stdin:
        query.processAllAvailable()
        sys.stdout.write("drained\n")
        sys.stdout.flush()
    query.stop()
    spark.stop()


def watch(query: StreamingQuery) -> None:
    """End the driver if a query fails, whatever it waits for."""
    try:
        query.awaitTermination()
    except StreamingQueryException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
