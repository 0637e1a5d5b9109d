"""Names and types of a DataFrame's columns, checked on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import ArrayType, DataType, StructType, UserDefinedType

from ..._core import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

BINARY = "UTF8_BINARY"
"""The collation under which only equal bytes are equal."""


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


def plainly_named(df: DataFrame) -> DataFrame:
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
        raise checks.bad(name, columns, _missing(df, missing))
    return chosen


def check_columns(df: DataFrame, name: str, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns as a tuple. Raises `ConfigError` for missing or unorderable ones."""
    if columns is None:
        return ()
    chosen = check_there(df, name, columns)
    for column in chosen:
        kind = df.schema[column].dataType
        if (kind_of := _unordered(kind, nested=name == "order_by")) is not None:
            raise checks.bad(
                name,
                column,
                f"is {kind_of} ({kind.simpleString()}), which has no order; select a "
                "part of it as a column",
            )
    return chosen


def _missing(df: DataFrame, missing: Sequence[str]) -> str:
    for column in missing:
        outer, _, inner = column.partition(".")
        if inner and outer in df.columns and isinstance(df.schema[outer].dataType, StructType):
            alias = inner.replace(".", "_")
            return (
                f"must name columns, but {column!r} is a field of one; select it as a "
                f"column: df.withColumn({alias!r}, df[{column!r}])"
            )
    return f"must name columns of the DataFrame, which has {', '.join(df.columns)}"


def _unordered(kind: DataType, *, nested: bool) -> str | None:
    """Name the part of a type that has no order; `None` if all parts have one.

    Spark orders `nested` types, but they cannot be compared as keys.
    """
    if isinstance(kind, UserDefinedType):
        kind = kind.sqlType()
    if isinstance(kind, ArrayType):
        return _unordered(kind.elementType, nested=nested) if nested else "an array"
    if isinstance(kind, StructType):
        found = (_unordered(field.dataType, nested=nested) for field in kind.fields)
        return next((each for each in found if each is not None), None) if nested else "a struct"
    return {"map": "a map", "variant": "a variant"}.get(kind.typeName())


def has_collation(kind: DataType) -> bool:
    """Return whether Spark may treat two different values of the type as equal."""
    return getattr(kind, "collation", BINARY) != BINARY


def column_of(name: str) -> Column:
    """Return the column with exactly this name, which may contain dots and backticks."""
    quoted = name.replace("`", "``")
    return functions.col(f"`{quoted}`")


def typed(df: DataFrame, columns: Sequence[str]) -> str:
    """Describe the columns with Spark's names of their types, as text."""
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    return ", ".join(f"{name} {types[name]}" for name in columns)
