"""Instants and local times in microseconds, by the rules of a time zone."""

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
