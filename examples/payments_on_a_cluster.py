"""Payments from a Spark cluster, stored once however often the job runs for a day. Usage:
spark-submit --py-files sluicegate.zip payments_on_a_cluster.py DAY, with PG_DSN in the environment
"""

import os
import sys

from pyspark.sql import SparkSession

from sluicegate import Retry, Timeout, stack
from sluicegate.postgres import PostgresSink
from sluicegate.spark import write_dataframe

PAYMENTS = (
    "SELECT concat('a', id % 4) AS account, id DIV 4 AS seq, 10 * id AS amount FROM range(20)"
)


def main(day: int) -> None:
    spark = SparkSession.builder.getOrCreate()  # the master is spark-submit's
    sink = PostgresSink(
        os.environ["PG_DSN"], table="payments", columns=("account", "seq", "amount")
    )
    report = write_dataframe(
        spark.sql(PAYMENTS),
        stack(sink, Timeout(30.0), Retry()),
        delivery="bucket",
        key="account",
        order_by="seq",
        buckets=2,
        app_id="payments",
        version=day,
    )
    print(f"{report.rows} rows, {report.skipped_units} of 2 buckets were stored before")


if __name__ == "__main__":
    main(int(sys.argv[1]))
