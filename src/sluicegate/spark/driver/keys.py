"""Key columns of a write: the partitions of a key, and the order of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions

from ..._core import checks
from ..destination import scattered_by
from ..levels.units import BUCKET
from ..task.key_failure import POLICIES
from ..task.superseded import SUPERSEDED
from .columns import check_columns, check_names, column_of, has_collation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from ..task.key_failure import OnKeyFailure


@dataclass(frozen=True, slots=True)
class KeySettings:
    """The checked key, order and buckets of one write; no columns without a key."""

    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    buckets: int | None
    latest_only: bool
    on_key_failure: OnKeyFailure
    is_collated: bool
    """Whether Spark may treat two different values of the key as equal."""

    @classmethod
    def of(
        cls,
        df: DataFrame,
        key: str | Sequence[str] | None,
        *,
        order_by: str | Sequence[str] | None,
        buckets: int | None,
        latest_only: bool,
        on_key_failure: OnKeyFailure,
    ) -> KeySettings:
        """Check the arguments. Raises `ConfigError`."""
        columns = check_columns(df, "key", key)
        if key is None and (order_by is not None or buckets is not None):
            raise checks.bad(
                "order_by" if order_by is not None else "buckets",
                order_by or buckets,
                "has no meaning without key",
            )
        if checks.choice("on_key_failure", on_key_failure, POLICIES) != "skip" and key is None:
            raise checks.bad("on_key_failure", on_key_failure, "has no meaning without key")
        order = check_columns(df, "order_by", order_by)
        if latest_only:
            _check_latest(df, latest_only, columns, order)
        collated = any(has_collation(df.schema[name].dataType) for name in columns)
        if collated and on_key_failure != "skip":
            rule = (
                "needs a key with bytewise equality, but this one has a collation; "
                "key by a column such as lower(key)"
            )
            raise checks.bad("on_key_failure", on_key_failure, rule)
        return cls(columns, order, buckets, latest_only, on_key_failure, collated)

    def arranged(self, df: DataFrame) -> DataFrame:
        """Return `df` with the rows of each key together and in order; unchanged without a key."""
        if not self.columns:
            return df
        return keyed(df, self.columns, order_by=self.order_by or None, buckets=self.buckets)


def check_order(sink: object, key: Sequence[str]) -> None:
    """Raise `ConfigError` if `sink`, open or not, does not keep the rows of one `key` in order."""
    if key and (reason := scattered_by(sink)) is not None:
        raise checks.bad("key", tuple(key), f"cannot be kept in order: {reason}")


def _check_latest(
    df: DataFrame, latest_only: object, key: Sequence[str], order: Sequence[str]
) -> None:
    if latest_only is not True:
        raise checks.bad("latest_only", latest_only, "must be True or False")
    if not key or not order:
        raise checks.bad(
            "latest_only", True, "needs key and order_by, which define the last row of a key"
        )
    if SUPERSEDED in df.columns:
        rule = "is reserved for the number of rows that a row supersedes; rename the column"
        raise checks.bad("df", SUPERSEDED, rule)


def keyed(
    df: DataFrame,
    key: str | Sequence[str],
    *,
    order_by: str | Sequence[str] | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """Arrange `df`: the rows of a key in one partition, together, ordered by `order_by`. Lazy.

    `buckets` is the number of partitions (default: `spark.sql.shuffle.partitions`). It is always
    passed to Spark, which could otherwise merge partitions. Names are taken literally: a dot or a
    backtick is part of a name. Raises `ConfigError` for missing columns, for arrays, maps, structs
    and variants as `key`, for maps and variants in `order_by`, and for two columns of one name.
    """
    # Without the literal, Spark could reuse a shuffle of the query for the same key, such as a
    # window's, whose partitions it may merge differently each time.
    check_names(df)
    keys, order = (
        [column_of(column) for column in check_columns(df, *given)]
        for given in (("key", key), ("order_by", order_by))
    )
    return df.repartition(bucket_count(df, buckets), *keys, functions.lit(0)).sortWithinPartitions(
        *keys, *order
    )


def bucket_count(df: DataFrame, buckets: int | None) -> int:
    """Return the number of partitions that keys are spread over."""
    return checks.optional_count("buckets", buckets) or int(
        df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200
    )


def with_bucket(df: DataFrame) -> DataFrame:
    """Add the partition's number as a column, right after `keyed`; a later `coalesce` keeps it."""
    if BUCKET in df.columns:
        raise checks.bad(
            "df",
            BUCKET,
            "is reserved for the number of a row's bucket; rename the column",
        )
    return df.withColumn(BUCKET, functions.spark_partition_id())
