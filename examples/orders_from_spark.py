"""Orders from Spark into PostgreSQL, in three ways. Usage: python orders_from_spark.py
postgresql://...
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession

from sluicegate import Retry, Sink, Timeout, stack
from sluicegate.postgres import PostgresSink
from sluicegate.spark import (
    Registration,
    SparkWriteReport,
    foreach_batch,
    register,
    write_dataframe,
)


def orders_sink(dsn: str) -> Sink[Any]:
    return stack(
        PostgresSink(
            dsn,
            schema="shop",
            table="orders",
            columns=("id", "name", "version"),
            on_conflict="update",
            version_column="version",
        ),
        Timeout(60.0),
        Retry(),
    )


def by_action(df: Any, dsn: str) -> SparkWriteReport:
    report = write_dataframe(df, orders_sink(dsn), key="id", order_by="version")
    print(report)
    return report


def by_micro_batches(stream: Any, dsn: str, checkpoint: Path) -> None:
    query = (
        stream.writeStream.foreachBatch(
            foreach_batch(orders_sink(dsn), key="id", order_by="version", on_report=print)
        )
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def by_name(spark: Any, df: Any, dsn: str) -> Registration:
    orders = register(spark, "orders", orders_sink(dsn))
    df.write.format("orders").mode("append").save()
    print(orders.report)
    return orders


def by_options(df: Any, url: str, user: str, password: str) -> None:
    (
        df.write.format("sluicegate")
        .option("url", url)  # jdbc:postgresql://host/database
        .option("user", user)
        .option("password", password)
        .option("dbtable", "shop.orders")
        .option("writeMode", "upsert")
        .option("versionColumn", "version")
        .mode("append")
        .save()
    )


def main(dsn: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    df = spark.range(1_000).selectExpr("id", "concat('order ', id) AS name", "1 AS version")
    by_action(df, dsn)
    by_name(spark, df, dsn)
    with TemporaryDirectory() as folder:
        df.write.mode("overwrite").json(f"{folder}/in")
        stream = spark.readStream.schema(df.schema).json(f"{folder}/in")
        by_micro_batches(stream, dsn, Path(folder, "checkpoint"))


if __name__ == "__main__":
    main(sys.argv[1])
