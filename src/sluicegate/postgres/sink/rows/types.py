"""The Arrow types that a table's columns accept, checked before any row is sent.

1. A column is refused if no row could be written from it, or if its values would be stored as
   something else: a fraction as an integer, a time as a date. Values that do not fit are found row
   by row.
2. Without the table, only types that fit no column are refused: nested types other than arrays.
3. Types of the table that are not listed here are left to the server.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan.table import Table, TableColumn

_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_FLOATS = frozenset({"real", "double precision"})
_MOMENTS = frozenset({"timestamp without time zone", "timestamp with time zone"})
_TEXTS = frozenset(
    {"text", "character varying", "character", "name", "json", "jsonb", "xml", "uuid"}
)
_NUMBERS = _INTEGERS | _FLOATS | {"numeric"}
_KNOWN = (
    _NUMBERS
    | _MOMENTS
    | _TEXTS
    | {
        "boolean",
        "date",
        "time without time zone",
        "time with time zone",
        "interval",
        "bytea",
        "oid",
        "money",
        "point",
    }
)


def refused_columns(schema: Any, columns: Sequence[str], table: Table | None) -> dict[str, str]:
    """The columns of `columns` that `schema` cannot fill, each with the reason and an alternative."""
    found: dict[str, str] = {}
    for name in columns:
        if name not in schema.names:
            found[name] = (
                "is a column of the sink, but is missing; the schema has "
                f"{', '.join(map(repr, schema.names))}"
            )
            continue
        why = _refusal(name, schema.field(name).type, None if table is None else table.column(name))
        if why is not None:
            found[name] = why
    return found


def _refusal(name: str, kind: Any, column: TableColumn | None) -> str | None:
    flat = _element(kind)
    if pa.types.is_nested(flat):
        return (
            f"no column takes nested values; write to_json({name}) into a json, jsonb or text "
            "column"
        )
    if column is None or pa.types.is_null(flat):
        return None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not column.sent_as.endswith("[]"):
            return f"an array does not fit into {column.exact}" + (
                f"; write to_json({name})" if column.sent_as in _TEXTS else ""
            )
        fits = _fits(flat, column.sent_as.removesuffix("[]"))
        return None if fits else f"its elements do not fit into {column.exact}; cast them first"
    if _fits(flat, column.sent_as):
        return None
    return f"does not fit into {column.exact}; {_instead(name, flat, column)}"


def takes(column: TableColumn, kind: Any) -> bool:
    """Whether a column of the table accepts values of this Arrow type."""
    return pa.types.is_null(kind) or _refusal(column.name, kind, column) is None


def _element(kind: Any) -> Any:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return kind


def _fits(kind: Any, loose: str) -> bool:
    return loose in _taken(kind) or (loose not in _KNOWN and not loose.endswith("[]"))


def _taken(kind: Any) -> frozenset[str]:
    types = pa.types
    if types.is_boolean(kind):
        return frozenset({"boolean"})
    if types.is_integer(kind):
        return _NUMBERS | {"oid"}
    if types.is_floating(kind):
        return _FLOATS | {"numeric"}
    if types.is_decimal(kind):
        return _NUMBERS if kind.scale <= 0 else _FLOATS | {"numeric"}
    if types.is_string(kind) or types.is_large_string(kind):
        return _TEXTS
    if types.is_timestamp(kind):
        return _MOMENTS
    if types.is_date(kind):
        return _MOMENTS | {"date"}
    if types.is_time(kind):
        return frozenset({"time without time zone"})
    if types.is_duration(kind):
        return frozenset({"interval"})
    if types.is_fixed_size_binary(kind):
        return frozenset({"bytea", "uuid"})
    return frozenset({"bytea"})


def _instead(name: str, kind: Any, column: TableColumn) -> str:
    if column.sent_as in _TEXTS:
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return f"write hex({name})"
        return f"write cast({name} AS string)"
    casts = {
        "double precision": "double",
        "real": "float",
        "timestamp without time zone": "timestamp",
        "timestamp with time zone": "timestamp",
    }
    known = {"smallint", "integer", "bigint", "boolean", "date"}
    to = casts.get(column.identity) or (column.identity if column.identity in known else None)
    return (
        f"write cast({name} AS {to})"
        if to is not None
        else f"convert it to a type that {column.loose} accepts"
    )
