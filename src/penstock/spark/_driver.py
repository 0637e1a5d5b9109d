"""What is decided on the driver: which columns, which partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions

from .._core import checks
from ._units import BUCKET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


def check_columns(df: DataFrame, name: str, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns as a tuple. Raises `ConfigError` for one that the DataFrame does not have."""
    if columns is None:
        return ()
    chosen = (columns,) if isinstance(columns, str) else tuple(columns)
    missing = [column for column in chosen if column not in df.columns]
    if missing or not chosen:
        raise checks.bad(name, columns, f"must name columns of the DataFrame, which has {', '.join(df.columns)}")
    return chosen


def keyed(df: DataFrame, key: str | Sequence[str], *, order_by: str | Sequence[str] | None = None, buckets: int | None = None) -> DataFrame:
    """`df` with the rows of each key in one partition, together, in the order of `order_by` (columns). Lazy.

    `buckets` is the number of partitions (default: `spark.sql.shuffle.partitions`); it is always given to Spark, which would otherwise merge
    partitions as it likes. Raises `ConfigError` for columns that are not there.
    """
    # The literal tells this shuffle from one that the query has for the same key already, such as a window's: Spark would take that one for
    # both, and it may merge its partitions, each time into others.
    keys, order = check_columns(df, "key", key), check_columns(df, "order_by", order_by)
    return df.repartition(bucket_count(df, buckets), *keys, functions.lit(0)).sortWithinPartitions(*keys, *order)


def typed(df: DataFrame, columns: Sequence[str]) -> str:
    """The columns and Spark's names of their types, as text."""
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    return ", ".join(f"{name} {types[name]}" for name in columns)


def bucket_count(df: DataFrame, buckets: int | None) -> int:
    """How many partitions keys are spread over."""
    return checks.optional_count("buckets", buckets) or int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)


def with_bucket(df: DataFrame) -> DataFrame:
    """`df` with the number of its partition as a column, right after `keyed`. A later `coalesce` does not change it."""
    if BUCKET in df.columns:
        raise checks.bad("df", BUCKET, "is the column that the number of a row's bucket travels in; name it otherwise")
    return df.withColumn(BUCKET, functions.spark_partition_id())
