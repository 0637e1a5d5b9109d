"""Column types for values, for type hints, and for Avro and Spark schemas.

1. Numbers of several kinds have the type that takes all of them; so have dates and times of day
   with dates. Of other mixtures the first value decides: the others fail their rows.
2. `None` says nothing about a type.
3. A type that the user writes is SQL: one type, with its length and its array bounds.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable
from uuid import UUID

from ..._core.checks import bad
from ..._core.values.encoding import field_names

Avro: TypeAlias = "str | Mapping[str, Any] | Sequence[Any]"

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "boolean"),
    (int, "bigint"),
    (float, "double precision"),
    (Decimal, "numeric"),
    (str, "text"),
    ((bytes, bytearray, memoryview), "bytea"),
    (datetime, "timestamptz"),
    (date, "date"),
    (time, "time"),
    (timedelta, "interval"),
    (UUID, "uuid"),
    ((Mapping, list, tuple), "jsonb"),
)
_WIDER = (
    ("bigint", {"integer", "bigint"}),
    ("double precision", {"integer", "bigint", "real", "double precision"}),
    ("numeric", {"integer", "bigint", "real", "double precision", "numeric"}),
    ("timestamptz", {"date", "timestamptz"}),
    ("timestamp", {"date", "timestamp"}),
)
_PRIMITIVES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "enum": "text",
    "bytes": "bytea",
    "fixed": "bytea",
    "record": "jsonb",
    "array": "jsonb",
    "map": "jsonb",
}
_LOGICAL = {
    "uuid": "uuid",
    "date": "date",
    "time-millis": "time",
    "time-micros": "time",
    "timestamp-millis": "timestamptz",
    "timestamp-micros": "timestamptz",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
}
_OF_SPARK = {
    **_PRIMITIVES,
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "decimal": "numeric",
    "varchar": "varchar",
    "char": "char",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "time": "time",
    "interval day": "interval",
    "interval hour": "interval",
    "interval minute": "interval",
    "interval second": "interval",
    "struct": "jsonb",
    "variant": "jsonb",
}
_NAME = r'(?:[^\W\d][\w$]*|"(?:[^"\0]|"")+")'
_TYPE = re.compile(
    rf"{_NAME}(?:\.{_NAME})?(?: \w+)*(?: ?\([ ]*\w+(?:[ ]*,[ ]*-?\w+)*[ ]*\))?(?: \w+)*(?:\[\d*\])*"
)


def check_types(given: Mapping[str, str]) -> dict[str, str]:
    """Check the column types that a user gives. Raises `ConfigError`."""
    for name, kind in given.items():
        if not isinstance(cast("object", kind), str) or not _TYPE.fullmatch(kind):
            rule = "must be a type of PostgreSQL, such as 'bigint' or 'numeric(12, 2)'"
            raise bad(f"columns[{name!r}]", kind, rule)
    return dict(given)


def type_of(values: Iterable[Any]) -> str | None:
    """The column type for these values; `None` if none of them tells it, or can tell it."""
    return _common(map(_type_or_none, values))


def _type_or_none(value: Any) -> str | None:
    try:
        return _type_of_value(value)
    except Exception:  # such as of a time zone; the value fails its row
        return None


def _type_of_value(value: Any) -> str | None:
    found = _type_of_class(type(value))
    if found == "bigint" and not -(2**63) <= value < 2**63:
        return "numeric"
    if found == "timestamptz" and value.utcoffset() is None:
        return "timestamp"
    return "timetz" if found == "time" and value.tzinfo is not None else found


def _type_of_class(kind: Any) -> str | None:
    for known, found in _KINDS:
        if issubclass(kind, known):
            return found
    has_fields = hasattr(kind, "model_dump") or field_names(kind) is not None
    return "jsonb" if has_fields else None


def _common(kinds: Iterable[str | None]) -> str | None:
    found = [kind for kind in dict.fromkeys(kinds) if kind is not None]
    if len(found) > 1:
        for wider, taken in _WIDER:
            if taken.issuperset(found):
                return wider
    return next(iter(found), None)


@runtime_checkable
class SparkSchema(Protocol):
    """A Spark `StructType`."""

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """The fields as values of JSON."""
        ...


def postgres_columns(schema: type | Mapping[str, Any] | SparkSchema) -> dict[str, str]:
    """Return the columns of a schema with their PostgreSQL types, for `PostgresSink(columns=)`.

    Args:
        schema: a dataclass, a pydantic model or another class with type hints, a parsed Avro
            record schema, or the schema of a Spark DataFrame (`df.schema`). `datetime` becomes
            `timestamptz`. In Avro, a union with null becomes the other type; records, maps and
            arrays become `jsonb`. In Spark, structs, maps, variants and arrays that contain them
            become `jsonb`; other arrays become PostgreSQL arrays, with one dimension per level of
            nesting.

    Returns a new dictionary; you may replace individual types in it. Raises `ConfigError` for a
    field that has no known PostgreSQL type, and names the field. Does not suspend.
    """
    if isinstance(schema, Mapping):
        if schema.get("type") != "record":
            raise bad("schema", schema, "must be an Avro schema of a record")
        named: dict[str, str] = {}
        found = {each["name"]: _of_avro(each["type"], named) for each in schema["fields"]}
    elif isinstance(schema, SparkSchema) and not isinstance(cast("object", schema), type):
        found = {each["name"]: _of_spark(each["type"]) for each in schema.jsonValue()["fields"]}
    elif isinstance(cast("object", schema), type):
        hints = typing.get_type_hints(schema)
        models = getattr(schema, "model_fields", None)
        names = hints if models is None else models
        found = {name: _of_hint(hints[name]) for name in field_names(schema) or names}
    else:
        rule = "must be a class with type hints, a parsed Avro schema, or a schema of Spark"
        raise bad("schema", schema, rule)
    unknown = [name for name, kind in found.items() if kind is None]
    if unknown or not found:
        rule = f"no type of PostgreSQL is known for its fields {unknown}; write columns= by hand"
        raise bad("schema", schema, rule)
    return {name: kind for name, kind in found.items() if kind is not None}


def _of_hint(hint: Any) -> str | None:
    origin = typing.get_origin(hint)
    if origin in {typing.Union, types.UnionType}:
        kinds = [_of_hint(each) for each in typing.get_args(hint) if each is not type(None)]
        return _only(kinds)
    if origin is typing.Literal:
        return _only([_type_of_value(each) for each in typing.get_args(hint)])
    if origin in {typing.Annotated, typing.Required, typing.NotRequired, typing.Final}:
        return _of_hint(typing.get_args(hint)[0])
    if isinstance(hint, typing.NewType):
        return _of_hint(hint.__supertype__)
    kind = origin or hint
    return _type_of_class(kind) if isinstance(kind, type) else None


def _of_avro(schema: Avro, named: dict[str, str]) -> str | None:
    """The type of an Avro schema; `named` has those of the named types that were defined before."""
    if isinstance(schema, str):
        return _PRIMITIVES.get(schema) or named.get(schema.rpartition(".")[2])
    if not isinstance(schema, Mapping):
        return _only([_of_avro(each, named) for each in schema if each != "null"])
    kind, logical = schema["type"], schema.get("logicalType")
    found = _of_avro(kind, named)
    if logical == "decimal":
        found = f"numeric({schema['precision']}, {schema.get('scale', 0)})"
    elif logical is not None:
        found = _LOGICAL.get(logical, found)
    if "name" in schema and found is not None:
        named[schema["name"].rpartition(".")[2]] = found
    inner = [field["type"] for field in schema.get("fields", ())]
    for each in (*inner, *(schema[part] for part in ("items", "values") if part in schema)):
        _of_avro(each, named)  # may define named types
    return found


def _of_spark(kind: str | Mapping[str, Any]) -> str | None:
    """The PostgreSQL type of a Spark type, as its JSON shows it."""
    if isinstance(kind, str):
        name, _, size = kind.partition("(")
        name = name.partition(" to ")[0].partition(" collate ")[0]
        found = _OF_SPARK.get(name)
        is_sized = found in {"numeric", "varchar", "char"}
        return f"{found}({size}" if is_sized and size else found
    if kind["type"] == "udt":
        return _of_spark(kind["sqlType"])
    if kind["type"] != "array":
        return _of_spark(kind["type"])
    inner = _of_spark(kind["elementType"])
    return inner if inner is None or inner == "jsonb" or inner.endswith("[]") else f"{inner}[]"


def _only(kinds: Sequence[str | None]) -> str | None:
    """The type of a union; `None` if its members have types that no column takes together."""
    found = None if None in kinds else _common(kinds)
    wide: set[str | None] = {found}
    wide.update(*(taken for wider, taken in _WIDER if wider == found))
    return found if wide.issuperset(kinds) else None
