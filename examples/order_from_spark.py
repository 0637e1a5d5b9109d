"""Payments from Spark, in order for each account. Usage: python order_from_spark.py
postgresql://...
"""

import sys
from typing import Any

from pyspark.sql import SparkSession

from sluicegate import Retry, stack
from sluicegate.postgres import PostgresSink
from sluicegate.spark import write_dataframe

PAYMENTS = """
    SELECT concat('a', id % 2) AS account, id DIV 2 AS seq, IF(id = 4, -1, 10 * id) AS amount
    FROM range(10)
"""


def main(dsn: str) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    payments: Any = spark.sql(PAYMENTS)
    sink = PostgresSink(dsn, table="payments", columns=("account", "seq", "amount"))
    report = write_dataframe(
        payments,
        stack(sink, Retry()),
        key="account",
        order_by="seq",
        on_key_failure="stop",
        dead_letters="return",
    )
    print(report.delivered, "delivered,", report.stopped, "stopped behind another row")
    for dead in sorted(report.dead_rows, key=lambda dead: dead.row["seq"]):
        print(dead.row, dead.error_type)


if __name__ == "__main__":
    main(sys.argv[1])
