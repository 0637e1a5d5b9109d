"""Arrow columns as binary `COPY`, without a Python object per value.

1. An array of another type than that of the table's column is cast as a whole first. `NoEncoder` is
   raised before any row is encoded.
2. Rows are encoded in pieces that fit in the processor's cache. The server works on one piece while
   the next is encoded.
3. Decimals have digits of base 10,000, most significant first. The unscaled number is divided by
   powers of ten as one 64-bit word if every number fits, otherwise as four 32-bit words. The number
   of digits before and after the decimal point follows from the precision and the scale. The server
   strips leading and trailing zeros.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from .layout import ArrayValues, FixedValues, Layout, NoEncoder, SlicedValues
from .wire import (
    DIGITS,
    EPOCH_DAYS,
    EPOCH_MICROSECONDS,
    HEADER,
    JSONB_VERSION,
    NEGATIVE,
    TRAILER,
    numeric_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .layout import FieldValues


__all__ = ["MESSAGE", "PIECE", "NoEncoder", "binary_copy"]

PIECE = 1 << 18
"""Bytes of rows that are encoded together; a larger row is encoded alone."""
MESSAGE = 1 << 20
"""Maximum bytes per message: large values could exceed the server's limit of 1 GiB."""
pc: Any = compute  # its functions are created at import, invisible to type checkers
_TEXTS = frozenset({"text", "character varying", "json", "jsonb", "xml"})
_BASE = 10**DIGITS
_HEAD = 4
"""16-bit numbers before the digits: their count, the weight of the first, sign, scale."""
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def binary_copy(
    columns: Sequence[tuple[Any, str]], *, piece_bytes: int = PIECE
) -> Iterator[memoryview]:
    """Encode Arrow arrays, each with the type of its column, as pieces of binary `COPY`.

    Each piece has its own memory. Raises `NoEncoder` immediately if a column must be sent as
    tuples.
    """
    fields = [field_values(values, kind) for values, kind in columns]
    return _pieces(Layout(fields, len(columns[0][0])), piece_bytes)


def _pieces(layout: Layout, piece_bytes: int) -> Iterator[memoryview]:
    ends = layout.ends
    start, rows, sent = 0, len(ends), 0
    if not rows:
        yield memoryview(HEADER + TRAILER)
    while start < rows:
        stop = max(start + 1, int(np.searchsorted(ends, sent + piece_bytes, "right")))
        before, after = HEADER if not start else b"", TRAILER if stop == rows else b""
        piece = layout.encode(start, stop, before, after).data
        for place in range(0, len(piece), MESSAGE):
            yield piece[place : place + MESSAGE]
        start, sent = stop, int(ends[stop - 1])


@dataclass(frozen=True, slots=True)
class FixedType:
    """A fixed-width type: its Arrow type, the format of its bytes, and its epoch."""

    arrow: Any
    form: str
    zero: int = 0


_FIXED: dict[str, FixedType] = {
    "smallint": FixedType(pa.int16(), ">i2"),
    "integer": FixedType(pa.int32(), ">i4"),
    "bigint": FixedType(pa.int64(), ">i8"),
    "real": FixedType(pa.float32(), ">f4"),
    "double precision": FixedType(pa.float64(), ">f8"),
    "boolean": FixedType(pa.uint8(), ">u1"),
    "date": FixedType(pa.date32(), ">i4", EPOCH_DAYS),
    "timestamp without time zone": FixedType(pa.timestamp("us"), ">i8", EPOCH_MICROSECONDS),
    "timestamp with time zone": FixedType(pa.timestamp("us", "UTC"), ">i8", EPOCH_MICROSECONDS),
    "time without time zone": FixedType(pa.time64("us"), ">i8"),
}


def field_values(values: Any, kind: str) -> FieldValues:
    """Return the values of one column of the type `kind`. Raises `NoEncoder`."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if kind in _FIXED:
        return _fixed(values, _FIXED[kind])
    if kind == "uuid":
        return _uuids(values)
    if kind == "numeric":
        return _numerics(values)
    if kind in _TEXTS and (
        pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    ):
        return _slices(values, JSONB_VERSION if kind == "jsonb" else b"")
    if kind == "bytea" and (
        pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    ):
        return _slices(values)
    raise NoEncoder(kind)


def _fixed(values: Any, fixed: FixedType) -> FieldValues:
    if pa.types.is_floating(values.type) and pa.types.is_integer(fixed.arrow):
        raise NoEncoder(str(values.type))
    try:
        cast = values if values.type == fixed.arrow else values.cast(fixed.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise NoEncoder(str(error)) from error
    return ArrayValues(
        fixed.form, _data(cast, fixed.form.replace(">", "<")), _valid(values), fixed.zero
    )


def _uuids(values: Any) -> FieldValues:
    if pa.types.is_fixed_size_binary(values.type) and values.type.byte_width == 16:
        return ArrayValues("V16", _data(values, "V16"), _valid(values))
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise NoEncoder("uuid")
    return ArrayValues("V16", uuid_bytes(values), _valid(values))


def _numerics(values: Any) -> FieldValues:
    kind = values.type
    if pa.types.is_integer(kind):
        values = values.cast(pa.decimal128(20, 0))
        kind = values.type
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        words = _data(values, "V16").view("<u8").reshape(-1, 2)
        return DecimalValues(words, _valid(values), kind.precision, kind.scale)
    if not (pa.types.is_decimal(kind) or pa.types.is_floating(kind)):
        raise NoEncoder(str(kind))
    # a double becomes the shortest decimal that reads back as the same double: Arrow's text
    texts = values if pa.types.is_decimal(kind) else values.cast(pa.string())
    found = texts.to_pylist()
    return _slices(
        pa.array(
            [None if each is None else numeric_bytes(Decimal(each)) for each in found], pa.binary()
        )
    )


def _slices(values: Any, mark: bytes = b"") -> SlicedValues:
    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    width = 8 if large else 4
    offsets, data = values.buffers()[1:]
    bounds = (
        np.frombuffer(offsets, f"<i{width}", len(values) + 1, values.offset * width)
        if len(values)
        else np.zeros(1, np.int64)
    )
    return SlicedValues(np.frombuffer(data or b"", np.uint8), bounds, _valid(values), mark)


def _valid(values: Any) -> Any:
    """Return a mask of the values that are not NULL; `None` if all are not NULL."""
    return values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None


def _data(values: Any, form: str) -> Any:
    """Return the values, in Arrow's own memory."""
    if not len(values):
        return np.empty(0, form)
    width = np.dtype(form).itemsize
    return np.frombuffer(values.buffers()[1], form, len(values), values.offset * width)


def uuid_bytes(values: Any) -> Any:
    """Return the 16 bytes of each UUID; any bytes for NULL. Raises `NoEncoder` for other text."""
    digits = pc.replace_substring(pc.fill_null(values, "0" * 32), "-", "")
    if not pc.all(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$"), min_count=0).as_py():
        raise NoEncoder("uuid")
    return np.frombuffer(bytes.fromhex("".join(digits.to_pylist())), "V16")


class DecimalValues(FixedValues):
    """Values of decimal128 with a scale of 0 or more."""

    def __init__(self, words: Any, valid: Any, precision: int, scale: int) -> None:
        self._words = words
        self._scale = scale
        self._after = -(-scale // DIGITS)
        self._count = self._after + -(-max(precision - scale, 1) // DIGITS)
        super().__init__(f"V{2 * (_HEAD + self._count)}", valid)

    def array(self, start: int, stop: int) -> Any:
        """Return the values in the format that `numeric_recv` reads."""
        negative, words = _absolute(self._words[start:stop])
        out = np.empty((stop - start, _HEAD + self._count), ">u2")
        out[:, 0] = self._count
        out[:, 1] = (self._count - self._after - 1) % (1 << 16)
        out[:, 2] = np.where(negative, NEGATIVE, 0)
        out[:, 3] = self._scale
        place, known = _HEAD + self._count, self._scale % DIGITS
        if known:
            words, digit = _divide(words, 10**known)
            place -= 1
            out[:, place] = digit * np.uint64(10 ** (DIGITS - known))
        while place > _HEAD:
            words, two = _divide(words, _BASE**2)
            first = two // np.uint64(_BASE)
            out[:, place - 1] = two - first * np.uint64(_BASE)
            if place - 2 >= _HEAD:
                out[:, place - 2] = first
            place -= 2
        return out.view(self.form)[:, 0]


def _absolute(words: Any) -> tuple[Any, list[Any]]:
    """Return which numbers are negative, and the words of their absolute values, highest first."""
    low: Any = words[:, 0]
    high: Any = words[:, 1]
    negative = high >> np.uint64(63) != 0
    if negative.any():
        low = np.where(negative, ~low + np.uint64(1), low)
        high = np.where(negative, ~high + (low == 0), high)
    if not high.any():
        return negative, [low]
    return negative, [high >> _HALF, high & _LOW, low >> _HALF, low & _LOW]


def _divide(words: list[Any], divisor: int) -> tuple[list[Any], Any]:
    """Divide by less than 32 bits; return the quotients' words and the remainders."""
    by = np.uint64(divisor)
    rest = np.uint64(0)
    quotients: list[Any] = []
    for word in words:
        value = (rest << _HALF) | word
        quotients.append(value // by)
        rest = value - quotients[-1] * by
    return quotients, rest
