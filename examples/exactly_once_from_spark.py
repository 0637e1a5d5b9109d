"""Payments from Spark, stored once although they are written twice. Usage:
python exactly_once_from_spark.py postgresql://...
"""

import sys
from typing import Any

from pyspark.sql import SparkSession

from sluicegate import Retry, Timeout, stack
from sluicegate.postgres import PostgresSink
from sluicegate.spark import write_dataframe

PAYMENTS = (
    "SELECT concat('a', id % 4) AS account, id DIV 4 AS seq, 10 * id AS amount FROM range(20)"
)


def write(payments: Any, dsn: str) -> None:
    sink = PostgresSink(dsn, table="payments", columns=("account", "seq", "amount"))
    report = write_dataframe(
        payments,
        stack(sink, Timeout(30.0), Retry()),
        delivery="bucket",
        key="account",
        order_by="seq",
        buckets=2,
        app_id="payments",
        version=20260704,
    )
    print(report)


def main(dsn: str) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    payments = spark.sql(PAYMENTS)
    write(payments, dsn)
    write(payments, dsn)  # as after a crash


if __name__ == "__main__":
    main(sys.argv[1])
