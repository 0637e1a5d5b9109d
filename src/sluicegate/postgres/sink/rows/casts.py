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

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from pyarrow import compute

if TYPE_CHECKING:
    from collections.abc import Callable


pc: Any = compute  # its functions are created at import, so type checkers do not see them

INTEGERS = {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}
FLOATS = {"real": pa.float32(), "double precision": pa.float64()}
DAY = 86_400_000_000
YEAR_1 = -719_162 * DAY
YEAR_10_000 = 2_932_897 * DAY
_CYCLE = 146_097 * DAY
"""Microseconds after which the calendar, including weekdays, repeats: 400 years."""
_OFFSET = DAY
"""More than any zone's offset from UTC. A time this far inside Python's range of years stays inside
it in every zone.
"""
_LATE = 24_472 * DAY
"""2037-01-01: zone tables end with this year, and Arrow does not use the rule that follows."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # also for local times


def fit(values: Any, loose: str, zone: str) -> Any:
    """Cast values so that columns and tuples store the same in a column of type `loose`.

    The values must be free of faults.
    """
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _fit_list(values, loose.removesuffix("[]"), zone)
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
        return _array_like(instants(micros(values), zone), values, pa.timestamp("us", "UTC"))
    if loose == "timestamp without time zone" and pa.types.is_date(kind):
        return values.cast(pa.timestamp("us"))
    if (
        pa.types.is_timestamp(kind)
        and kind.tz is not None
        and loose in {"timestamp without time zone", "date"}
    ):
        values = _array_like(local(micros(values), zone), values, pa.timestamp("us"))
    if pa.types.is_timestamp(kind) and loose == "date":
        return _array_like((micros(values) // DAY).astype(np.int32), values, pa.date32())
    return values


def _fit_list(values: Any, loose: str, zone: str) -> Any:
    flat = values.flatten()
    elements = fit(flat, loose, zone)
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


def _array_like(numbers: Any, like: Any, kind: Any) -> Any:
    absent = pc.is_null(like).to_numpy(zero_copy_only=False) if like.null_count else None
    return pa.array(numbers, mask=absent).cast(kind)


def local(instant: Any, zone: str) -> Any:
    """Convert instants to local times, both in microseconds."""
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
    """Convert local times to instants, both in microseconds, by Java's rule.

    The offset before a change applies to skipped and to repeated times.
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
    """The microseconds of an offset such as `+05:30`, which older versions of Arrow do not parse;
    otherwise `None`.
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
    """Correct offsets after the last transition of the table, where the zone's rule applies."""
    late = np.flatnonzero(moments >= _LATE)
    if len(late):
        there = ZoneInfo(zone)
        for place in late.tolist():
            found = offset(_EPOCH + timedelta(microseconds=int(moments[place])), there)
            offsets[place] = (found or timedelta()) // timedelta(microseconds=1)
    return offsets


def _inside(moments: Any) -> Any:
    """Shift times by whole calendar cycles into years that tables and Python's times cover."""
    first, beyond = YEAR_1 + _OFFSET, YEAR_10_000 - _OFFSET
    later = np.where(moments >= beyond, (moments - beyond) // _CYCLE + 1, 0)
    earlier = np.where(moments < first, (first - moments - 1) // _CYCLE + 1, 0)
    return moments + (earlier - later) * _CYCLE
