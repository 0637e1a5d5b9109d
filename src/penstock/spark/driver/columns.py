"""What is decided on the driver: which columns, which partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import ArrayType, DataType, StructType, UserDefinedType

from ..._core import checks
from ..levels.units import BUCKET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

_BINARY = "UTF8_BINARY"
"""The collation under which only equal bytes are equal."""


def check_names(df: DataFrame) -> None:
    """Raise `ConfigError` where two columns of `df` have one name, as Spark compares names."""
    folds = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() != "true"
    seen: dict[str, str] = {}
    for name in df.columns:
        folded = name.lower() if folds else name
        if folded in seen:
            how = " (spark.sql.caseSensitive is false)" if seen[folded] != name else ""
            rule = (
                f"are two columns of one name{how}; a row has one value for each name, so "
                "rename one of them"
            )
            raise checks.bad("df", [seen[folded], name], rule)
        seen[folded] = name


def plainly_named(df: DataFrame) -> DataFrame:
    """`df` with names that Spark reads as one name each: `mapInArrow` would take `a.b` for a field
    of `a`. The order of columns stays.
    """
    if not any("." in name or "`" in name for name in df.columns):
        return df
    return df.toDF(*(f"c{place}" for place in range(len(df.columns))))


def check_there(df: DataFrame, name: str, columns: str | Sequence[str]) -> tuple[str, ...]:
    """The columns as a tuple. Raises `ConfigError` for one that the DataFrame does not have."""
    chosen = (columns,) if isinstance(columns, str) else tuple(columns)
    missing = [column for column in chosen if column not in df.columns]
    if missing or not chosen:
        raise checks.bad(name, columns, _missing(df, missing))
    return chosen


def check_columns(df: DataFrame, name: str, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns as a tuple. Raises `ConfigError` for one that the DataFrame does not have, or by
    whose type rows have no order.
    """
    if columns is None:
        return ()
    chosen = check_there(df, name, columns)
    for column in chosen:
        kind = df.schema[column].dataType
        if (kind_of := _unordered(kind, nested=name == "order_by")) is not None:
            raise checks.bad(
                name,
                column,
                f"is {kind_of} ({kind.simpleString()}), by which rows have no order; select a "
                "part of it as a column",
            )
    return chosen


def _missing(df: DataFrame, missing: Sequence[str]) -> str:
    for column in missing:
        outer, _, inner = column.partition(".")
        if inner and outer in df.columns and isinstance(df.schema[outer].dataType, StructType):
            alias = inner.replace(".", "_")
            return (
                f"must name columns, and {column!r} is a field of one; select it as a "
                f"column: df.withColumn({alias!r}, df[{column!r}])"
            )
    return f"must name columns of the DataFrame, which has {', '.join(df.columns)}"


def _unordered(kind: DataType, *, nested: bool) -> str | None:
    """What a type is by which rows have no order; `nested` ones have one for Spark, but cannot be
    compared as keys.
    """
    if isinstance(kind, UserDefinedType):
        kind = kind.sqlType()
    if isinstance(kind, ArrayType):
        return _unordered(kind.elementType, nested=nested) if nested else "an array"
    if isinstance(kind, StructType):
        found = (_unordered(field.dataType, nested=nested) for field in kind.fields)
        return next((each for each in found if each is not None), None) if nested else "a struct"
    return {"map": "a map", "variant": "a variant"}.get(kind.typeName())


def is_collated(df: DataFrame, key: Sequence[str]) -> bool:
    """Whether Spark may hold two different texts of these columns for equal."""
    kinds = (df.schema[name].dataType for name in key)
    return any(getattr(kind, "collation", _BINARY) != _BINARY for kind in kinds)


def column_of(name: str) -> Column:
    """The column of exactly that name, which may hold dots and backticks."""
    quoted = name.replace("`", "``")
    return functions.col(f"`{quoted}`")


def keyed(
    df: DataFrame,
    key: str | Sequence[str],
    *,
    order_by: str | Sequence[str] | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """`df` with the rows of each key in one partition, together, in the order of `order_by`
    (columns). Lazy.

    `buckets` is the number of partitions (default: `spark.sql.shuffle.partitions`); it is always
    given to Spark, which would otherwise merge partitions as it likes. Names are taken literally: a
    dot or a backtick is part of a name. Raises `ConfigError` for columns that are not there, for
    arrays, maps, structs and variants as `key`, for maps and variants in `order_by`, and for two
    columns of one name.
    """
    # The literal tells this shuffle from one that the query has for the same key already, such as a
    # window's: Spark would take that one for both, and it may merge its partitions, each time into
    # others.
    check_names(df)
    keys, order = (
        [column_of(column) for column in check_columns(df, *given)]
        for given in (("key", key), ("order_by", order_by))
    )
    return df.repartition(bucket_count(df, buckets), *keys, functions.lit(0)).sortWithinPartitions(
        *keys, *order
    )


def typed(df: DataFrame, columns: Sequence[str]) -> str:
    """The columns and Spark's names of their types, as text."""
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    return ", ".join(f"{name} {types[name]}" for name in columns)


def bucket_count(df: DataFrame, buckets: int | None) -> int:
    """How many partitions keys are spread over."""
    return checks.optional_count("buckets", buckets) or int(
        df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200
    )


def with_bucket(df: DataFrame) -> DataFrame:
    """`df` with the number of its partition as a column, right after `keyed`. A later `coalesce`
    does not change it.
    """
    if BUCKET in df.columns:
        raise checks.bad(
            "df",
            BUCKET,
            "is the column that the number of a row's bucket travels in; name it otherwise",
        )
    return df.withColumn(BUCKET, functions.spark_partition_id())
