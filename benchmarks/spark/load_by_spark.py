"""A load of Parquet files by Spark: `python -m benchmarks.spark.load_by_spark WAY FOLDER DSN`.

It prints a line when Spark has started, and one when the load is done.
"""

from __future__ import annotations

import sys
from typing import Any

from sluicegate.postgres import PostgresSink
from sluicegate.spark import Pipeline, connector_jars
from sluicegate.spark.pipeline import Incremental, Source, Write

from . import jdbc
from .sessions import start


def by_sluicegate(spark: Any, folder: str, dsn: str) -> None:
    rows = spark.read.parquet(folder)
    rows.write.format("sluicegate").options(url=dsn, dbtable="flights").mode("append").save()


def by_pipeline(spark: Any, folder: str, dsn: str) -> None:
    columns = tuple(spark.read.parquet(folder).columns)
    Pipeline(
        name="flights",
        sources={
            "flights": Source(format="parquet", path=folder, incremental=Incremental(files=True))
        },
        sinks={"table": PostgresSink(dsn, table="flights", columns=columns)},
        write=Write(view="flights", sink="table", delivery="atomic"),
    ).run(spark)


def by_jdbc(spark: Any, folder: str, dsn: str) -> None:
    jdbc.append(spark.read.parquet(folder), dsn, "flights", size=10_000, rewrite=True)


FILE_BY_FILE = {"spark.sql.files.maxPartitionBytes": "1m"}
"""A file is a partition, as one of usual size is."""
WAYS = {"sluicegate": by_sluicegate, "pipeline": by_pipeline, "jdbc": by_jdbc}


def main(way: str, folder: str, dsn: str) -> None:
    spark = start(connector_jars("postgresql"), more=FILE_BY_FILE)
    print("begin", flush=True)
    WAYS[way](spark, folder, dsn)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
