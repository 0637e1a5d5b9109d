"""Arrow columns as parts of records, checked by type before any row is sent."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from .records import RecordParts

_IN_JSON = "has bytes, which JSON cannot represent"
_HEADERS = "headers must be ARRAY<STRUCT<key: STRING, value: BINARY>> or MAP<STRING, BINARY>"


def refused_columns(schema: Any, parts: RecordParts) -> dict[str, str]:
    """The columns that are missing or cannot be used as a part of a record, each with the reason
    and an alternative.
    """
    found: dict[str, str] = {}
    for part, name in parts.fields.items():
        if name not in schema.names:
            there = ", ".join(map(repr, schema.names))
            found[name] = f"is named by {part}=, but does not exist; the columns are {there}"
        elif (why := _refusal(part, name, schema.field(name).type)) is not None:
            found.setdefault(name, why)
    if "value" not in parts.given:
        for column in schema:
            if _has_bytes(column.type):
                advice = f"name the value's column with value=, or write base64({column.name})"
                found.setdefault(column.name, f"{_IN_JSON}; {advice}")
    return found


def _refusal(part: str, name: str, kind: Any) -> str | None:
    if pa.types.is_null(kind):
        return None
    rule = f"cannot be {part}=: it is {kind}, and"
    types = pa.types
    if part == "key":
        nested = types.is_nested(kind) and _has_bytes(kind)
        return f"cannot be key=: it {_IN_JSON}; encode them with base64" if nested else None
    if part == "value":
        fits = _is_text(kind) or _is_binary(kind)
        return None if fits else f"{rule} a value must be bytes or text; write to_json({name})"
    if part == "headers":
        return None if _is_headers(kind) else f"{rule} {_HEADERS}"
    if part == "timestamp":
        if types.is_integer(kind) or (types.is_timestamp(kind) and kind.tz is not None):
            return None
        return (
            f"{rule} a timestamp must have a time zone or be in milliseconds; write cast({name} AS "
            "TIMESTAMP)"
        )
    if part == "partition":
        fits = types.is_integer(kind)
        return None if fits else f"{rule} a partition must be a number; write cast({name} AS INT)"
    return None if _is_text(kind) else f"{rule} a topic must be text; write cast({name} AS STRING)"


def _is_headers(kind: Any) -> bool:
    types = pa.types
    if types.is_map(kind):
        return _is_header(kind.key_type, kind.item_type)
    if not (types.is_list(kind) or types.is_large_list(kind)):
        return False
    pair = kind.value_type
    if not types.is_struct(pair) or {field.name for field in pair} != {"key", "value"}:
        return False
    return _is_header(pair.field("key").type, pair.field("value").type)


def _is_header(name: Any, value: Any) -> bool:
    return _is_text(name) and (_is_text(value) or _is_binary(value))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def _has_bytes(kind: Any) -> bool:
    if _is_binary(kind):
        return True
    return any(_has_bytes(kind.field(place).type) for place in range(kind.num_fields))
