"""Values that asyncpg would change, for columns of the table; such a row fails alone. Pure.

asyncpg drops the fraction of a number for a column of whole numbers, the time of day of a date, and
the date and the zone of a time of day.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, time
from itertools import chain
from operator import attrgetter, itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ...._clients.changed_values import (
    ChangedValue,
    Check,
    dateless,
    day,
    elements,
    time_of_day,
    whole,
)
from ...._core.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .lazy import Row

_AT_ONCE = 512
"""Number of rows whose columns fit into the processor's cache."""


def _are_whole(values: Iterable[Any]) -> bool:
    """A sum is an integer only if all its numbers are integers."""
    return type(sum(filter(None, values))) is int


def _are_days(values: Iterable[Any]) -> bool:
    return _DAYS.issuperset(map(type, values))


def _are_local(values: Iterable[Any]) -> bool:
    found: list[time | None] = [*values]
    if not _TIMES.issuperset(map(type, found)):
        return False
    return _NO_ZONE.issuperset(map(_zone, filter(None, found)))


def _are_null(values: Iterable[Any]) -> bool:
    return all(value is None for value in values)


def _are_times(values: Iterable[Any]) -> bool:
    return _TIMES.issuperset(map(type, values))


_DAYS = frozenset({NoneType, date})
_TIMES = frozenset({NoneType, time})
_NO_ZONE = frozenset({None})
_zone = attrgetter("tzinfo")


@runtime_checkable
class Range(Protocol):
    """A range of asyncpg."""

    @property
    def lower(self) -> Any:
        """The lower bound; `None` if there is none."""
        ...

    @property
    def upper(self) -> Any:
        """The upper bound; `None` if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class ColumnCheck:
    """The check of the values for one type of column."""

    are_kept: Callable[[Iterable[Any]], bool]
    """Whether a quick check proves that none of these values would be changed."""
    check: Check


_WHOLE = ColumnCheck(_are_whole, whole)
_CHECKS = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid", "xid", "xid8"), _WHOLE),
    "date": ColumnCheck(_are_days, day),
    "time without time zone": ColumnCheck(_are_local, time_of_day),
    "time with time zone": ColumnCheck(_are_times, dateless),
}


def _of_arrays(check: ColumnCheck) -> ColumnCheck:
    def are_kept(values: Iterable[Any]) -> bool:
        """Arrays of one dimension; others are checked value by value."""
        return check.are_kept(chain.from_iterable(filter(None, values)))

    return ColumnCheck(are_kept, elements(check.check))


def _of_ranges(check: Check) -> ColumnCheck:
    def checked(value: Any) -> None:
        """Check the bounds of a range, a pair, or an array of these."""
        if isinstance(value, (list, tuple)):
            for each in cast("Sequence[Any]", value):
                checked(each)
        elif isinstance(value, Range):
            checked((value.lower, value.upper))
        elif value is not None:
            check(value)

    return ColumnCheck(_are_null, checked)


_RANGES = {
    **dict.fromkeys(
        ("int4range", "int8range", "int4multirange", "int8multirange"), _of_ranges(whole)
    ),
    **dict.fromkeys(("daterange", "datemultirange"), _of_ranges(day)),
}
CHECKS = {
    **_CHECKS,
    **{f"{kind}[]": _of_arrays(check) for kind, check in _CHECKS.items()},
    **_RANGES,
    **{f"{kind}[]": check for kind, check in _RANGES.items()},
}
"""The checks, by the type of the column."""


def are_kept(rows: Sequence[Row], places: Mapping[int, str]) -> bool:
    """Whether a quick check proves that asyncpg would change no value of these rows."""
    if not places:
        return True
    checks = [CHECKS[kind].are_kept for kind in places.values()]
    try:
        for start in range(0, len(rows), _AT_ONCE):
            columns = _columns(rows[start : start + _AT_ONCE], [*places])
            if not all(kept(column) for kept, column in zip(checks, columns, strict=True)):
                return False
    except Exception:  # a value has another type
        return False
    return True


def _columns(rows: Sequence[Row], places: Sequence[int]) -> Iterable[Iterable[Any]]:
    """The values at these places; if most places are requested, all rows are transposed at once."""
    if 2 * len(places) <= len(rows[0]):
        return (map(itemgetter(place), rows) for place in places)
    transposed = list(zip(*rows, strict=True))
    return [transposed[place] for place in places]


def changed(
    rows: Sequence[Row], places: Mapping[int, str], names: Sequence[str]
) -> dict[int, PermanentError]:
    """The errors, by place, of rows with a value that asyncpg would change.

    Args:
        rows: the rows.
        places: the types of the columns with a check, by their places.
        names: the names of all columns.
    """
    found: dict[int, PermanentError] = {}
    if are_kept(rows, places):
        return found
    for column, kind in places.items():
        if are_kept(rows, {column: kind}):
            continue
        check = CHECKS[kind].check
        for place, row in enumerate(rows):
            try:
                check(row[column])
            except ChangedValue as error:
                text = f"column {names[column]!r} ({kind}): {error}"
                found.setdefault(place, PermanentError(text))
            except Exception:  # noqa: S112  # asyncpg refuses the value
                continue
    return found


def are_rounded(rows: Sequence[Row], places: Sequence[int]) -> bool:
    """Whether a value of these columns is a float."""
    return any(float in set(map(type, map(itemgetter(place), rows))) for place in places)
