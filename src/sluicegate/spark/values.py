"""Types and times between Spark and a sink.

1. The types of columns are checked on the driver, before the first row is read; values are not.
   Types that Arrow does not support, or represents as bytes that only Spark can read (variants),
   are refused for every sink; others if the sink cannot write them. One error lists all columns,
   each with Spark's name of its type, the reason, and an alternative.
   A write of a DataFrame to a sink that takes JSON sends structs, maps, variants, and arrays of
   these as text that Spark's `to_json` makes, with the fields that are NULL.
2. Spark casts between instants and local times in the session's time zone. It is read on the
   driver, and each record batch carries it in its schema's metadata, where sinks read it. A task of
   a format gets the zone from the properties of its job, if the session sets one, or from a
   timestamp column.
3. Spark accepts offsets such as `UTC+2`, `+2:00` and `Z`, which Arrow and Python do not. They
   become `+02:00` and `UTC`, even in timestamp columns, since rows could not be built otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute
from pyspark import TaskContext
from pyspark.sql import functions
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType, UserDefinedType

from .._core import checks
from .._core.arrow import TIME_ZONE
from .._core.errors import ConfigError
from .destination import refused_columns
from .keys import column_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

pc: Any = compute  # its functions are created at import, so type checkers do not see them
SETTING = "spark.sql.session.timeZone"
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2}))?")
_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "daytimeinterval": pa.duration("us"),
    "void": pa.null(),
}


def check_types(sink: object, schema: StructType, *, as_json: bool = False) -> None:
    """Raise `ConfigError` for columns of `schema` that `sink`, open or not, cannot write.

    `as_json`: whether nested values are sent `as_json`.
    """
    carried: list[Any] = []
    wrong: dict[str, str] = {}
    for field in schema.fields:
        is_text = as_json and _is_nested(field.dataType)
        kind = pa.string() if is_text else _arrow(field.dataType)
        if kind is None:
            wrong[field.name] = _instead(field.name, field.dataType)
        carried.append(pa.field(field.name, pa.null() if kind is None else kind))
    wrong = {**refused_columns(sink, pa.schema(carried)), **wrong}
    if wrong:
        raise ConfigError(_message(sink, schema, wrong))


def nested_as_json(df: DataFrame) -> DataFrame:
    """Replace nested values by their JSON; arrays of scalars stay."""
    if not any(_is_nested(field.dataType) for field in df.schema.fields):
        return df
    every = {"ignoreNullFields": "false"}
    return df.select(
        *(
            functions.to_json(column_of(field.name), every).alias(field.name)
            if _is_nested(field.dataType)
            else column_of(field.name)
            for field in df.schema.fields
        )
    )


def _is_nested(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_nested(kind.elementType)
    return isinstance(kind, (StructType, MapType)) or kind.typeName() == "variant"


def _arrow(kind: DataType) -> Any:
    """Return the Arrow type of a column; `None` if there is no type with its meaning."""
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        element = _arrow(kind.elementType)
        return None if element is None else pa.list_(element)
    if isinstance(kind, MapType):
        key, value = _arrow(kind.keyType), _arrow(kind.valueType)
        return None if key is None or value is None else pa.map_(key, value)
    if isinstance(kind, StructType):
        fields = [(field.name, _arrow(field.dataType)) for field in kind.fields]
        return None if any(found is None for _, found in fields) else pa.struct(fields)
    if isinstance(kind, UserDefinedType):
        return _arrow(kind.sqlType())
    return _TYPES.get(kind.typeName())


def _instead(name: str, kind: DataType) -> str:
    if "variant" in kind.simpleString():
        return f"variants are sent as bytes that no sink can read; write to_json({name})"
    if "interval" in kind.simpleString():
        return f"Arrow does not support it; write cast({name} AS string)"
    return (
        "Arrow does not support it in a form that sinks can read; convert it to text or bytes, or "
        "leave it out"
    )


def _message(sink: object, schema: StructType, wrong: Mapping[str, str]) -> str:
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    lines = [
        f"column {name!r}" + (f" ({kinds[name]})" if name in kinds else "") + f" {why}"
        for name, why in wrong.items()
    ]
    return "\n  ".join((f"df cannot be written to {sink!r}:", *lines))


def session_zone(df: DataFrame) -> str:
    """Return the session's zone in Arrow's spelling. Raises `ConfigError` if Arrow lacks it."""
    given = str(df.sparkSession.conf.get(SETTING))
    zone = spell_zone(given)
    if zone.startswith(("+", "-")):  # Spark has checked it; older versions of Arrow cannot
        return zone
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", zone)))
    except pa.ArrowInvalid as error:
        raise checks.bad(
            SETTING,
            given,
            "is a zone that Arrow does not know; set a region such as 'Europe/Berlin' or an offset",
        ) from error
    return zone


def spell_zone(zone: str) -> str:
    """Convert the zone to the spelling of Arrow and Python."""
    found = _OFFSET.fullmatch(zone)
    if found is not None:
        return f"{found[1]}{int(found[2]):02d}:{int(found[3] or 0):02d}"
    return "UTC" if zone in {"Z", "UT", "GMT0"} else zone


def in_zone(batches: Iterable[pa.RecordBatch], zone: str | None) -> Iterator[pa.RecordBatch]:
    """Add the zone to the record batches; default: that of the job, or of a column."""
    known = zone or _zone_of_job()
    for batch in batches:
        found = known or next(
            (kind.tz for kind in batch.schema.types if pa.types.is_timestamp(kind) and kind.tz),
            None,
        )
        yield batch if found is None else _mark(_respell(batch), spell_zone(found))


def _zone_of_job() -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(SETTING)


def _mark(batch: pa.RecordBatch, zone: str) -> pa.RecordBatch:
    return batch.replace_schema_metadata(
        {**(batch.schema.metadata or {}), TIME_ZONE: zone.encode()}
    )


def _respell(batch: pa.RecordBatch) -> pa.RecordBatch:
    kinds = [_respell_type(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    columns = [column.cast(kind) for column, kind in zip(batch.columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _respell_type(kind: Any) -> Any:
    if pa.types.is_list(kind):
        inner = _respell_type(kind.value_type)
        return kind if inner == kind.value_type else pa.list_(inner)
    if pa.types.is_timestamp(kind) and kind.tz and spell_zone(kind.tz) != kind.tz:
        return pa.timestamp(kind.unit, spell_zone(kind.tz))
    return kind
