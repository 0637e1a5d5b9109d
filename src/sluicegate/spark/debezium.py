"""Change events of Debezium as rows: the columns of a table, and the operation.

1. A row has the values of `after`, or of `before` if it was deleted: then all of them, or only the
   key, as the source's table says (`REPLICA IDENTITY`).
2. Tombstones, which follow a deletion for compaction, are left out. An event that cannot be read has
   no operation: the sink refuses it alone. So it does with `t` (truncate) and `m` (message).
3. A column is present if `after` has it with another value than Debezium's placeholder for a large
   value that did not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import MapType, StringType, StructField, StructType

from .._core.checks import bad
from .keys import check_there, column_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACEHOLDER = "__debezium_unavailable_value"
_EACH = MapType(StringType(), StringType())


def debezium_changes(
    df: DataFrame,
    schema: StructType | str,
    *,
    value: str = "value",
    op_column: str = "op",
    present_column: str | None = None,
) -> DataFrame:
    """Select the rows of Debezium's change events, for a sink with `changes=`. Lazy.

    Args:
        df: the events, of a stream or not, with additional columns such as the `offset`, which
            stay.
        schema: the columns of the source's table as Debezium writes them in JSON, as a `StructType`
            or as DDL text: `"id BIGINT, name STRING"`.
        value: the column with the event as JSON, text or binary, with or without its own schema
            (`schemas.enable`).
        op_column: the name of the column for the operation: `c`, `r`, `u` or `d`.
        present_column: the name of a column for the list of columns that the event has; default:
            none. Needed if the source leaves out large values that did not change, as PostgreSQL
            does with stored ones.

    Raises `ConfigError` for a missing column, and for two columns of one name.
    """
    check_there(df, "value", value)
    row = columns_of(df, schema) if isinstance(schema, str) else schema
    if not row.fields:
        raise bad("schema", schema, "must have the columns of the source's table")
    kept = [name for name in df.columns if name != value]
    added = [*row.names, op_column, *([] if present_column is None else [present_column])]
    both = [name for place, name in enumerate(added) if name in (*kept, *added[:place])]
    if both:
        raise bad("df", both, "would be two columns with the same name; rename or leave out one")
    payload = payload_of(column_of(value).cast("string"))
    event = functions.from_json(payload, event_type(row))
    columns = values_of(event, row)
    if present_column is not None:
        columns.append(present_in(payload, row).alias(present_column))
    events = df.where(column_of(value).isNotNull())
    return events.select(*map(column_of, kept), event.op.alias(op_column), *columns)


def columns_of(df: DataFrame, schema: str) -> StructType:
    """Read columns in Spark's notation; PySpark 3.5 does it in no other public way."""
    return df.sparkSession.createDataFrame([], schema).schema if schema.strip() else StructType()


def payload_of(text: Column) -> Column:
    """The JSON of an event without its own schema."""
    return functions.coalesce(functions.get_json_object(text, "$.payload"), text)


def event_type(row: StructType) -> StructType:
    """The type of an event about rows of this type."""
    fields = [("op", StringType()), ("before", row), ("after", row)]
    return StructType([StructField(name, kind) for name, kind in fields])


def values_of(event: Column, row: StructType) -> list[Column]:
    """The values of the row that an event is about, by name."""
    of_row = functions.when(event.op == "d", event.before).otherwise(event.after)
    return [of_row[name].alias(name) for name in row.names]


def present_in(payload: Column, row: StructType) -> Column:
    """The names of the columns that an event has."""
    each = functions.from_json(functions.get_json_object(payload, "$.after"), _EACH)
    has = functions.map_filter(each, lambda _, given: ~given.eqNullSafe(PLACEHOLDER))
    names = functions.array(*map(functions.lit, row.names))
    return functions.array_intersect(functions.map_keys(has), names)
