"""The types of a DataFrame's columns, checked before the first row is read.

1. Types are checked on the driver; values are not.
2. Types that Arrow does not support, or represents as bytes that only Spark can read (variants),
   are refused for every sink; others if the sink cannot write them.
3. One error lists all columns, each with Spark's name of its type, the reason, and an alternative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType, UserDefinedType

from ..._core.errors import ConfigError
from ..destination import refused_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def check_types(sink: object, schema: StructType) -> None:
    """Raise `ConfigError` for columns of `schema` that `sink`, open or not, cannot write."""
    carried: list[Any] = []
    wrong: dict[str, str] = {}
    for field in schema.fields:
        kind = _arrow(field.dataType)
        if kind is None:
            wrong[field.name] = _instead(field.name, field.dataType)
        carried.append(pa.field(field.name, pa.null() if kind is None else kind))
    wrong = {**refused_columns(sink, pa.schema(carried)), **wrong}
    if wrong:
        raise ConfigError(_message(sink, schema, wrong))


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
    return f"df cannot be written to {sink!r}: " + "; ".join(lines)
