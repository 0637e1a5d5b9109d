"""Arrow columns as PostgreSQL's binary COPY, without a Python object per value.

A field is its length and its bytes, big-endian. Values of a fixed width are a matrix of bytes;
other values are joined to their lengths by Arrow. A row is the number of its fields and the fields,
joined the same way. The result is the buffer that is sent.

The format: https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.4, and the `*_recv`
functions of each type.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from .types import takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan.table import TableColumn

pc: Any = compute  # its functions are made at import, where no checker sees them

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
_EPOCH_DAYS = 10_957
"""From 1970-01-01 to 2000-01-01, the epoch of PostgreSQL."""
_EPOCH_MICROSECONDS = 946_684_800_000_000
_DIGITS = 4
"""Decimal digits in one digit of numeric."""
_NEGATIVE = 0x4000
_SPECIAL = {("F", 0): 0xD000, ("F", 1): 0xF000}
_NAN = 0xC000
_LARGEST_NUMERIC = 18
"""Digits of a decimal that fits into 64 bits."""


class NoEncoder(Exception):  # a signal, not an error
    """This column must be sent as tuples."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of fixed width: its Arrow type, the form of its bytes, and its epoch."""

    arrow: Any
    bytes: str
    zero: int = 0


_FIXED: dict[str, Fixed] = {
    "smallint": Fixed(pa.int16(), ">i2"),
    "integer": Fixed(pa.int32(), ">i4"),
    "bigint": Fixed(pa.int64(), ">i8"),
    "real": Fixed(pa.float32(), ">f4"),
    "double precision": Fixed(pa.float64(), ">f8"),
    "boolean": Fixed(pa.uint8(), ">u1"),
    "date": Fixed(pa.date32(), ">i4", _EPOCH_DAYS),
    "timestamp without time zone": Fixed(pa.timestamp("us"), ">i8", _EPOCH_MICROSECONDS),
    "timestamp with time zone": Fixed(pa.timestamp("us", "UTC"), ">i8", _EPOCH_MICROSECONDS),
    "time without time zone": Fixed(pa.time64("us"), ">i8"),
}
_TEXTS = frozenset({"text", "character varying", "json", "xml"})
_ELEMENT_OIDS = {
    "smallint": 21, "integer": 23, "bigint": 20, "real": 700, "double precision": 701, "boolean": 16, "date": 1082, "numeric": 1700,
    "timestamp without time zone": 1114, "timestamp with time zone": 1184, "text": 25, "character varying": 1043, "uuid": 2950,
}  # fmt: skip


def encoded(batch: Any, columns: Sequence[TableColumn], places: Any = None) -> memoryview:
    """The rows as binary COPY, with their places in front if given.

    Raises `NoEncoder` for a column without an encoder.
    """
    for column in columns:
        if not takes(
            column, batch.schema.field(column.name).type
        ):  # bytes of a number may be those of a date as well
            raise NoEncoder(column.name)
    fields = [_fields(batch.column(column.name), column.loose) for column in columns]
    if places is not None:
        fields.insert(0, _fields(pa.array(places), "integer"))
    head = pa.scalar(len(fields).to_bytes(2, "big"), pa.binary())
    rows = (
        pc.binary_join_element_wise(head, *fields, b"")
        if batch.num_rows
        else pa.array([], pa.binary())
    )
    offsets = np.frombuffer(rows.buffers()[1], dtype=np.int32)[
        rows.offset : rows.offset + len(rows) + 1
    ]
    body = rows.buffers()[2].to_pybytes()[offsets[0] : offsets[-1]] if batch.num_rows else b""
    return memoryview(b"".join((HEADER, body, TRAILER)))


def _fields(values: Any, kind: str) -> Any:
    """One column's fields, lengths included, as an array of binary without nulls."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if kind.endswith("[]"):
        return _arrays(values, kind.removesuffix("[]"))
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return _with_nulls(_matrix(values, fixed), values)
    if kind == "uuid":
        return _with_nulls(_uuids(values), values)
    if kind == "numeric":
        if pa.types.is_decimal128(values.type) and values.type.precision <= _LARGEST_NUMERIC:
            return _with_nulls(_numerics(values), values)
        return _of_any_width(_numerics_one_by_one(values))
    if kind in _TEXTS or kind == "jsonb":
        return _of_any_width(_as_text(values), prefix=b"\1" if kind == "jsonb" else b"")
    if kind == "bytea":
        if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
            raise NoEncoder(kind)
        return _of_any_width(values.cast(pa.binary()))
    raise NoEncoder(kind)


def _matrix(values: Any, fixed: Fixed) -> Any:
    """The values' bytes, one row each; arbitrary bytes for NULL."""
    try:
        if pa.types.is_floating(values.type) and pa.types.is_integer(fixed.arrow):
            raise NoEncoder(str(values.type))
        cast = values.cast(fixed.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise NoEncoder(str(error)) from error
    width = np.dtype(fixed.bytes)
    plain = cast.view(_integer(width)) if fixed.zero or pa.types.is_temporal(fixed.arrow) else cast
    numbers = pc.fill_null(plain, 0).to_numpy(zero_copy_only=False)
    shifted = numbers - fixed.zero if fixed.zero else numbers
    return (
        np.ascontiguousarray(shifted.astype(width))
        .view(np.uint8)
        .reshape(len(values), width.itemsize)
    )


def _integer(width: np.dtype[Any]) -> Any:
    return pa.int32() if width.itemsize == 4 else pa.int64()


def _uuids(values: Any) -> Any:
    if pa.types.is_fixed_size_binary(values.type) and values.type.byte_width == 16:
        plain = b"".join(value or bytes(16) for value in values.to_pylist())
    elif _is_text(values.type):
        digits = pc.replace_substring(pc.fill_null(values, "0" * 32), "-", "")
        if not pc.all(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$")).as_py() and len(
            values
        ):
            raise NoEncoder("uuid")
        plain = bytes.fromhex("".join(digits.to_pylist()))
    else:
        raise NoEncoder("uuid")
    return np.frombuffer(plain, np.uint8).reshape(len(values), 16)


def _numerics(values: Any) -> Any:
    """Decimals of up to 18 digits as base-10,000 digits of numeric.

    The server strips leading and trailing zeros.
    """
    scale = values.type.scale
    after = -(-max(scale, 0) // _DIGITS)
    raw = np.frombuffer(values.buffers()[1], dtype="<i8")[
        2 * values.offset : 2 * (values.offset + len(values)) : 2
    ]
    negative = raw < 0
    number = np.abs(raw).astype(
        object if values.type.precision + _DIGITS * after - scale > _LARGEST_NUMERIC else np.uint64
    )
    number = number * 10 ** (_DIGITS * after - scale)
    count = after + -(-max(values.type.precision - scale, 1) // _DIGITS)
    out = np.zeros((len(values), 4 + count), dtype=">u2")
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = (
        count,
        (count - after - 1) % 65_536,
        np.where(negative, 0x4000, 0),
        max(scale, 0),
    )
    for place in range(count - 1, -1, -1):
        out[:, 4 + place] = number % 10_000
        number = number // 10_000
    return out.view(np.uint8)


def _numerics_one_by_one(values: Any) -> Any:
    """Other numbers; a double as the shortest decimal that reads back as it: Arrow's text."""
    kind = values.type
    if not (pa.types.is_decimal(kind) or pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise NoEncoder(str(kind))
    texts = values.cast(pa.string()) if not pa.types.is_decimal(kind) else values
    return pa.array(
        [None if each is None else numeric_bytes(Decimal(each)) for each in texts.to_pylist()],
        pa.binary(),
    )


def numeric_bytes(value: Decimal) -> bytes:
    """The form that `numeric_recv` reads: digit count, weight, sign, decimal places, digits."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return struct.pack(">HhHH", 0, 0, _SPECIAL.get((exponent, sign), _NAN), 0)
    shift = exponent % _DIGITS
    number = int("".join(map(str, digits))) * 10**shift
    groups: list[int] = []
    while number:
        number, group = divmod(number, 10_000)
        groups.append(group)
    weight = (exponent - shift) // _DIGITS + len(groups) - 1 if groups else 0
    head = struct.pack(
        ">HhHH", len(groups), weight, _NEGATIVE if sign and groups else 0, max(-exponent, 0)
    )
    return head + struct.pack(f">{len(groups)}H", *reversed(groups))


def _with_nulls(matrix: Any, values: Any) -> Any:
    """Fields of a fixed width; four bytes for NULL."""
    rows, width = matrix.shape
    fields = np.empty((rows, 4 + width), np.uint8)
    fields[:, :4] = np.frombuffer(width.to_bytes(4, "big"), np.uint8)
    fields[:, 4:] = matrix
    lengths = np.full(rows, 4 + width, np.int64)
    data = fields.reshape(-1)
    if values.null_count:
        absent = pc.is_null(values).to_numpy(zero_copy_only=False)
        fields[absent, :4] = 0xFF
        lengths[absent] = 4
        keep = np.ones(fields.shape, bool)
        keep[absent, 4:] = False
        data = fields[keep]
    return _binary(data, lengths)


def _binary(data: Any, lengths: Any) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(),
        len(lengths),
        [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())],
    )


def _of_any_width(values: Any, *, prefix: bytes = b"") -> Any:
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(
        np.int64
    ) + len(prefix)
    absent = pc.is_null(values).to_numpy(zero_copy_only=False)
    lengths = np.where(absent, -1, sizes).astype(">i4")
    width = pa.Array.from_buffers(
        pa.binary(4), len(values), [None, pa.py_buffer(lengths.tobytes())]
    ).cast(pa.binary())
    filled = pc.fill_null(values.cast(pa.binary()), b"")
    if not prefix:
        return pc.binary_join_element_wise(width, filled, b"")
    marks = pa.array([b"" if gone else prefix for gone in absent.tolist()], pa.binary())
    return pc.binary_join_element_wise(width, marks, filled, b"")


def _arrays(values: Any, kind: str) -> Any:
    """Encode one-dimensional arrays."""
    oid = _ELEMENT_OIDS.get(kind)
    if oid is None or not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        raise NoEncoder(f"{kind}[]")
    flat = values.flatten()
    sizes = (
        pc.fill_null(pc.list_value_length(values), 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    elements = _fields(flat, kind)
    bodies = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements), b"")
    heads = np.zeros((len(values), 5), ">i4")
    heads[:, 0], heads[:, 1], heads[:, 2], heads[:, 3], heads[:, 4] = (
        1,
        int(flat.null_count > 0),
        oid,
        sizes,
        1,
    )
    empty = sizes == 0
    heads[empty, 0] = 0
    head_bytes = heads.view(np.uint8).reshape(len(values), 20)
    lengths = np.where(empty, 12, 20)
    keep = np.arange(20)[None, :] < lengths[:, None]
    joined = pc.binary_join_element_wise(_binary(head_bytes[keep], lengths), bodies, b"")
    if values.null_count:
        joined = pc.if_else(pc.is_valid(values), joined, pa.scalar(None, pa.binary()))
    return _of_any_width(joined)


def _as_text(values: Any) -> Any:
    if not _is_text(values.type):
        raise NoEncoder(str(values.type))
    return values.cast(pa.string())


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
