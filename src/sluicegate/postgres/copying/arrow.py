"""The values of Arrow arrays, by the types of the table's columns.

An array of another type is cast as a whole first. `NoEncoder` is raised before any row is encoded.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from .decimals import DecimalValues
from .lists import list_values
from .numerics import numeric_bytes
from .uuids import uuid_bytes
from .values import ArrayValues, NoEncoder, SlicedValues
from .wire import ELEMENT_OIDS, EPOCH_DAYS, EPOCH_MICROSECONDS, JSONB_VERSION

if TYPE_CHECKING:
    from .values import FieldValues

pc: Any = compute  # its functions are created at import, invisible to type checkers


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
_TEXTS = frozenset({"text", "character varying", "json", "jsonb", "xml"})


def field_values(values: Any, kind: str) -> FieldValues:
    """Return the values of one column of the type `kind`. Raises `NoEncoder`."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if kind.endswith("[]"):
        return _lists(values, kind.removesuffix("[]"))
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
    return ArrayValues("V16", uuid_bytes(values, _slices(values)), _valid(values))


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


def _lists(values: Any, kind: str) -> FieldValues:
    """Return one-dimensional arrays, each as its header and the fields of its elements."""
    if kind not in ELEMENT_OIDS or not (
        pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    ):
        raise NoEncoder(f"{kind}[]")
    counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    elements = field_values(values.flatten(), kind)
    return list_values(elements, ELEMENT_OIDS[kind], counts, _valid(values))


def _valid(values: Any) -> Any:
    """Return a mask of the values that are not NULL; `None` if all are not NULL."""
    return values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None


def _data(values: Any, form: str) -> Any:
    """Return the values, in Arrow's own memory."""
    if not len(values):
        return np.empty(0, form)
    width = np.dtype(form).itemsize
    return np.frombuffer(values.buffers()[1], form, len(values), values.offset * width)
