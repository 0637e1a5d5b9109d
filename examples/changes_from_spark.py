"""A table that follows Debezium's topic of another one. Usage: python changes_from_spark.py
BROKER TOPIC postgresql://... CHECKPOINT
"""

import sys
from typing import Any

from pyspark.sql import SparkSession

from sluicegate import Retry, Timeout, stack
from sluicegate.postgres import Changes, PostgresSink, postgres_columns
from sluicegate.spark import connector_jars, debezium_changes, foreach_batch

CUSTOMER = "id BIGINT, name STRING, address STRUCT<city: STRING>, tags ARRAY<STRING>"


def main(broker: str, topic: str, dsn: str, checkpoint: str) -> None:
    builder: Any = SparkSession.builder
    spark = builder.config("spark.jars", connector_jars("kafka")).getOrCreate()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    changes = debezium_changes(records.select("value", "offset"), CUSTOMER)
    sink = PostgresSink(
        dsn,
        table="customers",
        columns=postgres_columns(changes.drop("op", "offset").schema),
        create_table="if_missing",
        on_conflict="update",
        conflict_columns=("id",),
        changes=Changes(op_column="op"),
    )
    write = foreach_batch(
        stack(sink, Timeout(60.0), Retry()),
        key="id",
        order_by="offset",
        latest_only=True,  # of the changes of a customer, a deletion or not, the last one
        delivery="bucket",
        buckets=4,
        on_report=lambda report: print(report.rows, "sent,", report.superseded, "superseded"),
    )
    query = (
        changes.writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
