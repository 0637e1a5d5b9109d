"""Values of Arrow columns as columns of the table take them: what cannot be carried is named by its
row, the rest is cast.

1. *Faults* are found in the columns before the server sees a row: NULL, NUL, bytes that are not
   UTF-8, numbers and dates out of range.
2. An instant (a timestamp with a zone) becomes a date or a timestamp without a zone by the local
   time of the *zone*, and these become instants by it: the zone that the record batch names, as
   Spark's casts go by the session's, else UTC. The zones of this machine, of this process and of
   the server's session have no part in it. A local time that is skipped is moved on by what was
   skipped; of one that comes twice the first is meant.
3. A floating-point number becomes the shortest decimal that reads back as the same number, for 32
   bits by 32 bits.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ..._core.arrow_rows import values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pc: Any = compute  # its functions are made when it is imported, where no checker sees them

_INTEGERS = {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}
_FLOATS = {"real": pa.float32(), "double precision": pa.float64()}
_DAY = 86_400_000_000
_CYCLE = 146_097 * _DAY
"""Microseconds after which the calendar repeats, weekdays included: 400 years."""
_YEAR_1 = -719_162 * _DAY
_YEAR_10_000 = 2_932_897 * _DAY
_OFFSET = _DAY
"""No zone is further from UTC: a moment that lies further inside Python's years stays there in
every zone.
"""
_FIRST_AND_LAST_DAY = (-719_162, 2_932_896)
_FIRST_AND_LAST_MOMENT = (_YEAR_1, _YEAR_10_000 - 1)
"""Of Python's calendar; asyncpg sends both as infinity."""
_LATE = 24_472 * _DAY
"""2037-01-01: tables of zones end with this year, and leave the rest to a rule that Arrow does not
read.
"""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # local times, too
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
"""4714-11-24 BC and 5874897-12-31, in days from 1970-01-01."""
_FIRST_MOMENT = _FIRST_DAY * _DAY
_LAST_DAY_OF_MOMENTS = 106_751_990
"""The last whole day that 64 bits of microseconds reach."""
_MOMENTS = frozenset({"timestamp without time zone", "timestamp with time zone"})


# -- what cannot be carried ------------------------------------------------------------------------


def faults(values: Any, loose: str, exact: str) -> Iterator[tuple[str, Any]]:
    """Why rows cannot be stored in a column of this type, each with a mask of those rows."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        rows = _rows_of_elements(values)
        for why, mask in faults(
            values.flatten(), loose.removesuffix("[]"), exact.removesuffix("[]")
        ):
            yield f"an element {why}", np.isin(np.arange(len(values)), rows[mask])
        return
    kind = values.type
    found: list[tuple[str, Any]] = []
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        found = _text_faults(values, exact)
    elif loose in _INTEGERS and pa.types.is_integer(kind):
        least, most = _range(_INTEGERS[loose])
        if _range(kind)[0] < least or _range(kind)[1] > most:
            found = [(f"is out of range for {loose}", _outside(values, least, most))]
    elif loose in _INTEGERS and (pa.types.is_decimal(kind) or pa.types.is_floating(kind)):
        found = _fraction_faults(values, loose)
    elif loose == "real" and pa.types.is_float64(kind):
        too_large = np.isfinite(_numbers(values)) & ~np.isfinite(
            _numbers(values.cast(pa.float32()))
        )
        found = [("is out of range for real", too_large)]
    elif pa.types.is_date32(kind) and (loose == "date" or loose in _MOMENTS):
        last = _LAST_DAY if loose == "date" else _LAST_DAY_OF_MOMENTS
        found = [
            (f"is out of range for {loose}", _outside(values.cast(pa.int32()), _FIRST_DAY, last))
        ]
    elif pa.types.is_timestamp(kind) and kind.unit == "us" and loose in _MOMENTS:
        found = [
            (
                f"is out of range for {loose}",
                _outside(values.cast(pa.int64()), _FIRST_MOMENT, 2**63 - 1),
            )
        ]
    yield from ((why, mask) for why, mask in found if mask.any())


def _text_faults(values: Any, exact: str) -> list[tuple[str, Any]]:
    broken = _not_utf8(values)
    found = [
        ("holds bytes that are not UTF-8", broken),
        ("holds a NUL character, which text cannot", _mask(pc.match_substring(values, "\0"))),
    ]
    limit = re.fullmatch(r"character varying\((\d+)\)", exact)
    if limit is not None:
        whole = (
            pc.if_else(pa.array(broken), pa.scalar(None, values.type), values)
            if broken.any()
            else values
        )
        long = pc.greater(pc.utf8_length(pc.utf8_rtrim_whitespace(whole)), int(limit[1]))
        found.append((f"is longer than {exact}", _mask(long)))
    return found


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
    least, most = _range(_INTEGERS[loose])
    given = values.to_pylist()
    outside = [value is not None and not least <= value <= most for value in given]
    fraction = [
        value is not None and not beyond and value != int(value)
        for value, beyond in zip(given, outside, strict=True)
    ]
    return [
        (f"is out of range for {loose}", np.array(outside, bool)),
        (f"is no whole number, and the column is {loose}", np.array(fraction, bool)),
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


def _range(kind: Any) -> tuple[int, int]:
    info = np.iinfo(kind.to_pandas_dtype())
    return int(info.min), int(info.max)


def _mask(found: Any) -> Any:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _numbers(values: Any) -> Any:
    return pc.fill_null(values, 0).to_numpy(zero_copy_only=False)


# -- as Python's objects ---------------------------------------------------------------------------


def objects(values: Any) -> tuple[list[Any], dict[int, str]]:
    """A column's values for asyncpg, and the reason for each that it has no object for, or that it
    would send as infinity.
    """
    made, unreadable = values_of(values)
    is_list = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    flat = values.flatten() if is_list else values
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


def _rows_of_elements(values: Any) -> Any:
    """For each element of a column of arrays the row that it is in."""
    return np.repeat(
        np.arange(len(values)),
        pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False),
    )


# -- casts -----------------------------------------------------------------------------------------


def fitted(values: Any, loose: str, zone: str) -> Any:
    """The values in a type from which both ways, columns and rows, store the same in a column of
    type `loose`; without faults.
    """
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _fitted_list(values, loose.removesuffix("[]"), zone)
    if loose in _FLOATS and pa.types.is_decimal(
        kind
    ):  # by text, since Arrow's own cast multiplies by a rounded power of ten
        return values.cast(pa.string()).cast(_FLOATS[loose])
    if loose == "numeric" and pa.types.is_float32(kind):
        return values.cast(pa.string()).cast(pa.float64())
    if loose in _INTEGERS and (pa.types.is_decimal(kind) or pa.types.is_floating(kind)):
        return values.cast(_INTEGERS[loose])
    if loose == "timestamp with time zone" and (
        pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    ):
        return _made(instants(_micros(values), zone), values, pa.timestamp("us", "UTC"))
    if loose == "timestamp without time zone" and pa.types.is_date(kind):
        return values.cast(pa.timestamp("us"))
    if (
        pa.types.is_timestamp(kind)
        and kind.tz is not None
        and loose in {"timestamp without time zone", "date"}
    ):
        values = _made(local(_micros(values), zone), values, pa.timestamp("us"))
    if pa.types.is_timestamp(kind) and loose == "date":
        return _made((_micros(values) // _DAY).astype(np.int32), values, pa.date32())
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


def _micros(values: Any) -> Any:
    plain = values.cast(pa.timestamp("us")) if pa.types.is_date(values.type) else values
    if plain.type.unit != "us":
        plain = plain.cast(pa.timestamp("us", plain.type.tz), safe=plain.type.unit != "ns")
    return pc.fill_null(plain.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)


def _made(numbers: Any, like: Any, kind: Any) -> Any:
    absent = pc.is_null(like).to_numpy(zero_copy_only=False) if like.null_count else None
    return pa.array(numbers, mask=absent).cast(kind)


def local(instant: Any, zone: str) -> Any:
    """The local time of each instant, both in microseconds."""
    if (fixed := _fixed(zone)) is not None:
        return instant + fixed
    inside = _inside(instant)
    offsets = _offsets(np.minimum(inside, _LATE), zone)
    return instant + _with_late(
        offsets,
        inside,
        zone,
        lambda moment, there: moment.replace(tzinfo=UTC).astimezone(there).utcoffset(),
    )


def instants(wall: Any, zone: str) -> Any:
    """The instant of each local time, both in microseconds, as Java tells it: by the offset before
    a change, both where it skips and repeats.
    """
    if (fixed := _fixed(zone)) is not None:
        return wall - fixed
    inside = _inside(wall)
    naive = pa.array(np.minimum(inside, _LATE)).cast(pa.timestamp("us"))
    near = (
        pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="earliest")
        .cast(pa.int64())
        .to_numpy(zero_copy_only=False)
    )
    return wall - _with_late(
        _offsets(near, zone),
        inside,
        zone,
        lambda moment, there: moment.replace(tzinfo=there).utcoffset(),
    )


def _fixed(zone: str) -> int | None:
    """The microseconds of an offset such as `+05:30`, which older Arrows do not read; `None` for a
    region.
    """
    if not zone.startswith(("+", "-")):
        return None
    minutes = int(zone[1:3]) * 60 + int(zone[4:6])
    return (-minutes if zone[0] == "-" else minutes) * 60_000_000


def _offsets(instant: Any, zone: str) -> Any:
    moments = pa.array(instant).cast(pa.timestamp("us", zone))
    return pc.local_timestamp(moments).cast(pa.int64()).to_numpy(zero_copy_only=False) - instant


def _with_late(
    offsets: Any, moments: Any, zone: str, offset: Callable[[datetime, ZoneInfo], timedelta | None]
) -> Any:
    """The offsets, those of late moments told by Python, which goes on with the last rule where the
    table of Arrow ends.
    """
    late = np.flatnonzero(moments >= _LATE)
    if len(late):
        there = ZoneInfo(zone)
        for place in late.tolist():
            found = offset(_EPOCH + timedelta(microseconds=int(moments[place])), there)
            offsets[place] = (found or timedelta()) // timedelta(microseconds=1)
    return offsets


def _inside(moments: Any) -> Any:
    """The same place in the calendar, in a year that tables of zones reach, and Python's times in
    every zone.
    """
    first, beyond = _YEAR_1 + _OFFSET, _YEAR_10_000 - _OFFSET
    later = np.where(moments >= beyond, (moments - beyond) // _CYCLE + 1, 0)
    earlier = np.where(moments < first, (first - moments - 1) // _CYCLE + 1, 0)
    return moments + (earlier - later) * _CYCLE
