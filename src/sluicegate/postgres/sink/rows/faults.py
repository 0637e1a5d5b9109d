"""Arrow types and individual values that a table's columns do not accept.

1. A column is refused if no row could be written from it, or if its values would be stored as
   something else: a fraction as an integer, a time as a date. Without the table, only types that
   fit no column are refused: nested types other than arrays. Types of the table that are not listed
   here are left to the server.
2. Values that cannot be stored are found by row before anything is sent: NULL, NUL, bytes that are
   not UTF-8, numbers and dates out of range, fractions in columns of whole numbers, times of day in
   columns of dates, and values without a Python object.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ...._core.arrow import values_of
from .casts import DAY, INTEGERS, YEAR_1, YEAR_10_000, local, micros

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..table import Table, TableColumn


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
pc: Any = compute  # its functions are created at import, so type checkers do not see them
_FIRST_AND_LAST_DAY = (-719_162, 2_932_896)
_FIRST_AND_LAST_MOMENT = (YEAR_1, YEAR_10_000 - 1)
"""The limits of Python's calendar; asyncpg sends both as infinity."""
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
"""4714-11-24 BC and 5874897-12-31, in days from 1970-01-01."""
_FIRST_MOMENT = _FIRST_DAY * DAY
_LAST_DAY_OF_MOMENTS = 106_751_990
"""The last whole day in 64 bits of microseconds."""
_BEYOND_ASCII = 0x80
_UUID = pa.binary(16)


def refused_columns(schema: Any, columns: Sequence[str], table: Table | None) -> dict[str, str]:
    """The columns of `columns` that `schema` cannot fill, each with the reason and an alternative,
    and those of the table that no row could do without.
    """
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
    if table is not None and table.is_plain:
        for column in table.columns:
            is_domain = not column.exact.startswith(column.loose.split()[0])  # may have a default
            if (
                column.name not in columns
                and column.not_null
                and not (column.has_default or column.generated or is_domain)
            ):
                why = "is NOT NULL in the table and has no default there, but is not a column of the sink"
                found[column.name] = why
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
    return f"does not fit into {column.exact}; cast it first"


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


def faults(values: Any, loose: str, exact: str, zone: str) -> Iterator[tuple[str, Any]]:
    """The reasons why rows cannot be stored in a column of this type, each with a mask of the rows.

    The date of an instant is that in `zone`.
    """
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        rows = _rows_of_elements(values)
        for why, mask in faults(
            values.flatten(), loose.removesuffix("[]"), exact.removesuffix("[]"), zone
        ):
            yield f"an element {why}", np.isin(np.arange(len(values)), rows[mask])
        return
    kind = values.type
    found: list[tuple[str, Any]] = []
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        found = _text_faults(values, exact)
    elif loose in INTEGERS and pa.types.is_integer(kind):
        least, most = _range(INTEGERS[loose])
        if _range(kind)[0] < least or _range(kind)[1] > most:
            found = [(f"is out of range for {loose}", _outside(values, least, most))]
    elif loose in INTEGERS and (pa.types.is_decimal(kind) or pa.types.is_floating(kind)):
        found = _fraction_faults(values, loose)
    elif loose == "real" and pa.types.is_float64(kind):
        too_large = np.isfinite(_numbers(values)) & ~np.isfinite(
            _numbers(values.cast(pa.float32()))
        )
        found = [("is out of range for real", too_large)]
    elif pa.types.is_date32(kind) and (loose == "date" or loose in _MOMENTS):
        last = _LAST_DAY if loose == "date" else _LAST_DAY_OF_MOMENTS
        found = [
            (f"is out of range for {loose}", _outside(values.view(pa.int32()), _FIRST_DAY, last))
        ]
    elif pa.types.is_timestamp(kind) and loose == "date":
        wall = micros(values) if kind.tz is None else local(micros(values), zone)
        timed = (wall % DAY != 0) & values.is_valid().to_numpy(zero_copy_only=False)
        found = [("is a time of day, but the column is date", timed)]
    elif pa.types.is_timestamp(kind) and kind.unit == "us" and loose in _MOMENTS:
        found = [
            (
                f"is out of range for {loose}",
                _outside(values.view(pa.int64()), _FIRST_MOMENT, 2**63 - 1),
            )
        ]
    yield from ((why, mask) for why, mask in found if mask.any())


def _text_faults(values: Any, exact: str) -> list[tuple[str, Any]]:
    content, sizes = _content(values)
    ascii_only = content.max(initial=0) < _BEYOND_ASCII
    broken = np.zeros(len(values), bool) if ascii_only else _not_utf8(values)
    found = [("holds bytes that are not UTF-8", broken)]
    if content.min(initial=1) == 0:
        nul = _mask(pc.match_substring(values, "\0"))
        found.append(("holds a NUL character, which text cannot hold", nul))
    limit = re.fullmatch(r"character varying\((\d+)\)", exact)
    if limit is not None and sizes.max(initial=0) > int(limit[1]):
        whole = (
            pc.if_else(pa.array(broken), pa.scalar(None, values.type), values)
            if broken.any()
            else values
        )
        long = pc.greater(pc.utf8_length(pc.utf8_rtrim_whitespace(whole)), int(limit[1]))
        found.append((f"is longer than {exact}", _mask(long)))
    return found


def _content(values: Any) -> tuple[Any, Any]:
    """All bytes of a text column, and the sizes of its values; NULL may contain any bytes."""
    offsets, data = values.buffers()[1:]
    if not len(values) or data is None:
        return np.empty(0, np.uint8), np.empty(0, np.int32)
    form = np.dtype("<i8" if pa.types.is_large_string(values.type) else "<i4")
    bounds = np.frombuffer(offsets, form, len(values) + 1, values.offset * form.itemsize)
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]], np.diff(bounds)


def _not_utf8(values: Any) -> Any:
    broken = np.zeros(len(values), bool)
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        large = pa.types.is_large_string(values.type)
        broken[:] = [
            value is not None and not _is_utf8(value)
            for value in values.cast(pa.large_binary() if large else pa.binary()).to_pylist()
        ]
    return broken


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fraction_faults(values: Any, loose: str) -> list[tuple[str, Any]]:
    least, most = _range(INTEGERS[loose])
    given = values.to_pylist()
    outside = [value is not None and not least <= value <= most for value in given]
    fraction = [
        value is not None and not beyond and value != int(value)
        for value, beyond in zip(given, outside, strict=True)
    ]
    return [
        (f"is out of range for {loose}", np.array(outside, bool)),
        (f"is not a whole number, but the column is {loose}", np.array(fraction, bool)),
    ]


def _outside(values: Any, least: int, most: int) -> Any:
    ends = pc.min_max(values).as_py()
    if ends["min"] is None or least <= ends["min"] <= ends["max"] <= most:
        return np.zeros(len(values), bool)
    return _mask(
        pc.or_(
            pc.less(values, pa.scalar(least, pa.int64())),
            pc.greater(values, pa.scalar(most, pa.int64())),
        )
    )


@cache
def _range(kind: Any) -> tuple[int, int]:
    info = np.iinfo(kind.to_pandas_dtype())
    return int(info.min), int(info.max)


def _mask(found: Any) -> Any:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _numbers(values: Any) -> Any:
    return pc.fill_null(values, 0).to_numpy(zero_copy_only=False)


def objects(values: Any, loose: str) -> tuple[list[Any], dict[int, str]]:
    """The values for a column of type `loose` in the form that asyncpg accepts, and the reason for
    each value that it cannot send.

    Such a value has no Python object, or asyncpg would send it as infinity.
    """
    made, unreadable = values_of(values)
    is_list = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    flat = values.flatten() if is_list else values
    if loose.removesuffix("[]") == "uuid" and flat.type == _UUID:
        return [_uuids(value) for value in made], unreadable
    if pa.types.is_date32(flat.type):
        ends = np.isin(_numbers(flat.cast(pa.int32())), _FIRST_AND_LAST_DAY)
    elif pa.types.is_timestamp(flat.type) and flat.type.unit == "us":
        ends = np.isin(_numbers(flat.cast(pa.int64())), _FIRST_AND_LAST_MOMENT)
    else:
        return made, unreadable
    found = np.flatnonzero(ends)
    places = _rows_of_elements(values)[found] if is_list else found
    return made, {
        **dict.fromkeys(
            places.tolist(), f"holds a {flat.type} that asyncpg would send as infinity"
        ),
        **unreadable,
    }


def _uuids(value: Any) -> Any:
    if isinstance(value, list):
        return [_uuids(each) for each in cast("list[Any]", value)]
    return None if value is None else UUID(bytes=value)


def _rows_of_elements(values: Any) -> Any:
    """The row of each element of an array column."""
    return np.repeat(
        np.arange(len(values)),
        pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False),
    )
