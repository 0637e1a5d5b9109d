"""A write from Spark, and its report. Usage: python watched_spark_write.py postgresql://..."""

import sys
from typing import Any

from pyspark.sql import SparkSession

from sluicegate import Retry, stack
from sluicegate.postgres import PostgresSink
from sluicegate.spark import write_dataframe

PAYMENTS = "SELECT concat('a', id % 2) AS account, IF(id = 4, -1, 10 * id) AS amount FROM range(10)"


def main(dsn: str) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    payments: Any = spark.sql(PAYMENTS)
    sink = PostgresSink(dsn, table="payments", columns=("account", "amount"))
    report = write_dataframe(payments, stack(sink, Retry()), dead_letters="return")
    print(report)
    for dead in report.dead_rows:
        print(dead.row, dead.error_type)


if __name__ == "__main__":
    main(sys.argv[1])
