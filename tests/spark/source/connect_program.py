"""All ways to write, on Spark Connect; prints results for the test. Arguments: a DSN and an empty
folder.

Nothing here gives up: the test ends a program that hangs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from sluicegate import SluicegateError
from sluicegate.postgres import PostgresSink
from sluicegate.spark import (
    PrometheusQueryListener,
    foreach_batch,
    register,
    write_dataframe,
)


class Ended(StreamingQueryListener):
    def __init__(self) -> None:
        self.seen = threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...
    def onQueryProgress(self, event: Any) -> None: ...
    def onQueryTerminated(self, event: Any) -> None:
        self.seen.set()


dsn, folder = sys.argv[1], Path(sys.argv[2])
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.python.authenticate.socketTimeout", "600s")  # 15 s are few on a busy machine
)
builder = builder.config(
    "spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
)  # it runs for seconds
spark = (
    builder.config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
sink = PostgresSink(dsn, table="by_connect", columns=("id", "way"), on_conflict="ignore")
found: dict[str, object] = {}

report = write_dataframe(
    spark.range(0, 100, numPartitions=2).selectExpr("id", "'dataframe' AS way"), sink
)
found["dataframe"] = report.delivered

by_name = register(spark, "by_name", sink)
spark.range(100, 150).selectExpr("id", "'name' AS way").write.format("by_name").mode(
    "append"
).save()
try:
    found["name"] = str(by_name.report)
except SluicegateError as error:
    found["name"] = str(error)

rows = spark.range(150, 170).selectExpr("id", "'options' AS way")
rows.write.format("sluicegate").option("url", dsn).option("dbtable", "by_connect").mode(
    "append"
).save()

(folder / "rows.json").write_text(
    "".join(f'{{"id": {200 + row}, "way": "batch"}}\n' for row in range(20))
)
stream = spark.readStream.schema("id long, way string").json(str(folder))
each = foreach_batch(sink, key="id", app_id="orders")
registry, ended = CollectorRegistry(), Ended()
listeners = (PrometheusQueryListener(registry), ended)
for listener in listeners:
    spark.streams.addListener(listener)
query = (
    stream.writeStream.foreachBatch(each)
    .queryName("rows")
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
found["error"] = str(query.exception())
ended.seen.wait()
for listener in listeners:
    spark.streams.removeListener(listener)
found["read"] = registry.get_sample_value("spark_query_input_rows_total", {"name": "rows"})

renamed = stream.selectExpr("id + 100 AS id", "'stream' AS way")
query = (
    renamed.writeStream.format("by_name")
    .option("checkpointLocation", str(folder / "second"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
found["second error"] = str(query.exception())
sys.stdout.write(json.dumps(found))
spark.stop()
