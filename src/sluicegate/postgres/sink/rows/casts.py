"""Arrow columns cast to types from which tuples and binary COPY store the same values.

1. An instant (a timestamp with a zone) becomes a date or a timestamp without a zone by the local
   time of the *zone*, and vice versa: the zone that the record batch names, as Spark's casts use
   the session's, or else UTC. The zones of the machine, of the process and of the server's session
   have no effect. A skipped local time is shifted by the length of the gap; of a repeated local
   time the first occurrence is used.
2. A floating-point number becomes the shortest decimal that reads back as the same number, with 32
   bits for a 32-bit number.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from .zones import DAY, instants, local

pc: Any = compute  # its functions are created at import, so type checkers do not see them

INTEGERS = {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}
FLOATS = {"real": pa.float32(), "double precision": pa.float64()}


def fitted(values: Any, loose: str, zone: str) -> Any:
    """Cast values so that columns and tuples store the same in a column of type `loose`.

    The values must be free of faults.
    """
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _fitted_list(values, loose.removesuffix("[]"), zone)
    if loose in FLOATS and pa.types.is_decimal(kind):
        # through text, since Arrow's own cast multiplies by a rounded power of ten
        return values.cast(pa.string()).cast(FLOATS[loose])
    if loose == "numeric" and pa.types.is_float32(kind):
        return values.cast(pa.string()).cast(pa.float64())
    if loose in INTEGERS and (pa.types.is_decimal(kind) or pa.types.is_floating(kind)):
        return values.cast(INTEGERS[loose])
    if loose == "timestamp with time zone" and (
        pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    ):
        return _made(instants(micros(values), zone), values, pa.timestamp("us", "UTC"))
    if loose == "timestamp without time zone" and pa.types.is_date(kind):
        return values.cast(pa.timestamp("us"))
    if (
        pa.types.is_timestamp(kind)
        and kind.tz is not None
        and loose in {"timestamp without time zone", "date"}
    ):
        values = _made(local(micros(values), zone), values, pa.timestamp("us"))
    if pa.types.is_timestamp(kind) and loose == "date":
        return _made((micros(values) // DAY).astype(np.int32), values, pa.date32())
    return values


def _fitted_list(values: Any, loose: str, zone: str) -> Any:
    flat = values.flatten()
    elements = fitted(flat, loose, zone)
    if elements is flat:
        return values
    sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    return pa.ListArray.from_arrays(
        offsets, elements, mask=pc.is_null(values) if values.null_count else None
    )


def micros(values: Any) -> Any:
    """The microseconds of dates or timestamps since 1970; 0 for NULL."""
    plain = values.cast(pa.timestamp("us")) if pa.types.is_date(values.type) else values
    if plain.type.unit != "us":
        plain = plain.cast(pa.timestamp("us", plain.type.tz), safe=plain.type.unit != "ns")
    return pc.fill_null(plain.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)


def _made(numbers: Any, like: Any, kind: Any) -> Any:
    absent = pc.is_null(like).to_numpy(zero_copy_only=False) if like.null_count else None
    return pa.array(numbers, mask=absent).cast(kind)
