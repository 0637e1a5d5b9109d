"""Key columns of a write: the partitions of a key, the order of its rows, and buckets.

1. A bucket is a partition of `repartition(buckets, key)`. Spark puts every row of a key into it,
   whatever the partitions of the source, so a replay has the same rows in the same bucket. The
   partition of a task is unsuitable: it depends on the origin of a row.
2. The bucket's number travels with the rows, in a column added right after the shuffle. So there
   may be fewer tasks than buckets (`max_tasks`), and nothing depends on Spark's numbering of tasks.
3. Names of columns are taken literally: a dot or a backtick is part of a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import compute
from pyspark.sql import functions
from pyspark.sql.types import ArrayType, DataType, StructType, UserDefinedType

from .._core import checks
from .destination import scattered_by
from .task.key_failure import POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from .task.key_failure import OnKeyFailure

pc: Any = compute  # its functions are created at import, so type checkers do not see them
BUCKET = "sluicegate_bucket"
"""Column with the number of a row's bucket, from the driver to the task."""
SUPERSEDED = "sluicegate_superseded"
"""Column with the number of earlier, omitted rows of a row's key."""
BINARY = "UTF8_BINARY"
"""The collation under which only equal bytes are equal."""


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

    def arrange(self, df: DataFrame) -> DataFrame:
        """Return `df` with the rows of each key together and in order; unchanged without a key."""
        if not self.columns:
            return df
        return keyed(df, self.columns, order_by=self.order_by or None, buckets=self.buckets)


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


def check_order(sink: object, key: Sequence[str]) -> None:
    """Raise `ConfigError` if `sink`, open or not, does not keep the rows of one `key` in order."""
    if key and (reason := scattered_by(sink)) is not None:
        raise checks.bad("key", tuple(key), f"cannot be kept in order: {reason}")


def with_bucket(df: DataFrame) -> DataFrame:
    """Add the partition's number as a column, right after `keyed`; a later `coalesce` keeps it."""
    if BUCKET in df.columns:
        raise checks.bad(
            "df",
            BUCKET,
            "is reserved for the number of a row's bucket; rename the column",
        )
    return df.withColumn(BUCKET, functions.spark_partition_id())


def by_bucket(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield each bucket with its rows, without the bucket column.

    Read all rows of a bucket before the next bucket.
    """
    reading = _BucketReader(batches)
    while (bucket := reading.bucket()) is not None:
        yield bucket, reading.rows(bucket)


class _BucketReader:
    """Reads record batches up to each change of the bucket."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._left: pa.RecordBatch | None = None

    def bucket(self) -> int | None:
        """The bucket of the next row; `None` at the end."""
        while self._left is None or not self._left.num_rows:
            self._left = next(self._batches, None)
            if self._left is None:
                return None
        return int(self._left.column(BUCKET)[0].as_py())

    def rows(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """The rows up to the next bucket."""
        while self.bucket() == bucket:
            held = self._left
            assert held is not None
            of_it = pc.sum(pc.equal(held.column(BUCKET), bucket)).as_py()
            self._left = held.slice(of_it)
            yield held.slice(0, of_it).drop_columns(BUCKET)


def check_names(df: DataFrame) -> None:
    """Raise `ConfigError` if two columns of `df` have the same name for Spark."""
    folds = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() != "true"
    seen: dict[str, str] = {}
    for name in df.columns:
        folded = name.lower() if folds else name
        if folded in seen:
            how = " (spark.sql.caseSensitive is false)" if seen[folded] != name else ""
            rule = (
                f"are two columns with the same name{how}; a row has one value for each name, so "
                "rename one of them"
            )
            raise checks.bad("df", [seen[folded], name], rule)
        seen[folded] = name


def rename_plainly(df: DataFrame) -> DataFrame:
    """Rename the columns of `df` if a name has dots or backticks, in the same order.

    `mapInArrow` would read `a.b` as a field of `a`.
    """
    if not any("." in name or "`" in name for name in df.columns):
        return df
    return df.toDF(*(f"c{place}" for place in range(len(df.columns))))


def check_there(df: DataFrame, name: str, columns: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns as a tuple. Raises `ConfigError` for a missing one."""
    chosen = (columns,) if isinstance(columns, str) else tuple(columns)
    missing = [column for column in chosen if column not in df.columns]
    if missing or not chosen:
        raise checks.bad(name, columns, _missing_rule(df, missing))
    return chosen


def check_columns(df: DataFrame, name: str, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns as a tuple. Raises `ConfigError` for missing or unorderable ones."""
    if columns is None:
        return ()
    chosen = check_there(df, name, columns)
    for column in chosen:
        kind = df.schema[column].dataType
        if (kind_of := _part_without_order(kind, nested=name == "order_by")) is not None:
            raise checks.bad(
                name,
                column,
                f"is {kind_of} ({kind.simpleString()}), which has no order; select a "
                "part of it as a column",
            )
    return chosen


def _missing_rule(df: DataFrame, missing: Sequence[str]) -> str:
    for column in missing:
        outer, _, inner = column.partition(".")
        if inner and outer in df.columns and isinstance(df.schema[outer].dataType, StructType):
            alias = inner.replace(".", "_")
            return (
                f"must name columns, but {column!r} is a field of one; select it as a "
                f"column: df.withColumn({alias!r}, df[{column!r}])"
            )
    return f"must name columns of the DataFrame, which has {', '.join(df.columns)}"


def _part_without_order(kind: DataType, *, nested: bool) -> str | None:
    """Name the part of a type that has no order; `None` if all parts have one.

    Spark orders `nested` types, but they cannot be compared as keys.
    """
    if isinstance(kind, UserDefinedType):
        kind = kind.sqlType()
    if isinstance(kind, ArrayType):
        return _part_without_order(kind.elementType, nested=nested) if nested else "an array"
    if isinstance(kind, StructType):
        found = (_part_without_order(field.dataType, nested=nested) for field in kind.fields)
        return next((each for each in found if each is not None), None) if nested else "a struct"
    return {"map": "a map", "variant": "a variant"}.get(kind.typeName())


def has_collation(kind: DataType) -> bool:
    """Return whether Spark may treat two different values of the type as equal."""
    return getattr(kind, "collation", BINARY) != BINARY


def column_of(name: str) -> Column:
    """Return the column with exactly this name, which may contain dots and backticks."""
    quoted = name.replace("`", "``")
    return functions.col(f"`{quoted}`")


def describe_types(df: DataFrame, columns: Sequence[str]) -> str:
    """Describe the columns with Spark's names of their types, as text."""
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    return ", ".join(f"{name} {types[name]}" for name in columns)
