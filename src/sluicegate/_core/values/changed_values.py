"""Checks of values that a driver or a database would silently change in a column. Pure.

1. A column of whole numbers takes no fraction.
2. A date takes no time of day; a `datetime` at midnight is its date.
3. A time of day takes no date, and no zone unless its column has one. This applies to text, too:
   databases read the part that they need, and drop the other without an error.
4. An interval takes no object with months or hours of its own, such as a `relativedelta`: drivers
   read the days, the seconds and the microseconds of any object.
5. A point takes two coordinates, and any other geometric value as many parts as it has: asyncpg
   reads the first ones of any sequence, including bytes.
6. A number for a column of decimals is in PostgreSQL's range: asyncpg sends 1e200000 as 0.
7. An array is checked by its elements, in any number of dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sized
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from math import isfinite
from numbers import Real
from typing import Any, TypeAlias, cast

Check: TypeAlias = Callable[[Any], Any]
"""Returns the value. Raises `ChangedValue`."""
_NUMBERS = (Real, Decimal)
_TIME = re.compile(r"\d[T\s]\s*(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)", re.IGNORECASE)
"""The time of day after a date, as text."""
_CLOCK = re.compile(r"\s*-?\d{1,3}:\d{2}")
_DATE = re.compile(r"\d[-/]\d{1,2}[-/]\d")
_OFFSET = re.compile(r":\d{2}(?:\.\d+)?\s*(?:Z|[-+]\d)", re.IGNORECASE)
_LOST = ("years", "months", "hours", "minutes")
_COORDINATES = 2
DECIMAL_DIGITS = 131_072
"""Maximum number of digits before the decimal point of a PostgreSQL `numeric`."""
NO_ARRAYS = (str, bytes, bytearray, memoryview, Mapping)
"""Sized collections that drivers do not take for arrays."""


class ChangedValue(ValueError):
    """A value that would be changed in its column."""


def whole(value: Any) -> Any:
    """Check a value for a column of whole numbers."""
    if isinstance(value, _NUMBERS) and isfinite(value) and value % 1 != 0:
        raise ChangedValue(f"{value} is not a whole number, but the column has whole numbers")
    return value


def day(value: Any) -> Any:
    """Check a value for a column of dates."""
    if isinstance(value, str):
        found = _TIME.search(value)
        has_time = found is not None and bool(found[1].strip("0:."))
    else:
        has_time = isinstance(value, datetime) and value.time() != time()
    if has_time or is_dateless(value):
        raise ChangedValue("a time of day for a column of dates; pass its date()")
    return value


def is_dateless(value: Any) -> bool:
    """Whether a value is a time without a date, which MySQL takes for a date: 03:04:05 for
    2003-04-05.
    """
    if isinstance(value, str):
        return _CLOCK.match(value) is not None
    return isinstance(value, (time, timedelta))


def time_of_day(value: Any) -> Any:
    """Check a value for a column of times of a day without a zone."""
    if (
        _OFFSET.search(value) is not None
        if isinstance(value, str)
        else isinstance(value, time) and value.tzinfo is not None
    ):
        raise ChangedValue("a time of day with a zone for a column without one")
    return dateless(value)


def dateless(value: Any) -> Any:
    """Check a value for a column of times of a day with a zone."""
    if isinstance(value, date) or (isinstance(value, str) and _DATE.search(value) is not None):
        raise ChangedValue("a date for a column of times of a day; pass its time()")
    return value


def duration(value: Any) -> Any:
    """Check a value for a column of intervals."""
    lost = [name for name in _LOST if not isinstance(value, timedelta) and _has(value, name)]
    if lost:
        raise ChangedValue(
            f"{' and '.join(lost)} of a {type(value).__name__} for an interval; pass a timedelta"
        )
    return value


def _has(value: object, name: str) -> bool:
    found: object = getattr(value, name, None)
    return bool(found)


def decimal(value: Any) -> Any:
    """Check a value for a PostgreSQL column of decimals."""
    try:
        found = Decimal(value) if isinstance(value, str) else value
    except InvalidOperation:
        return value  # the server decides
    if isinstance(found, Decimal) and found.adjusted() >= DECIMAL_DIGITS:
        raise ChangedValue(f"a number of more than {DECIMAL_DIGITS:,} digits for a numeric column")
    return value


def point(value: Any) -> Any:
    """Check a value for a column of points."""
    if value is None:
        return value
    if not is_array(value):
        raise ChangedValue(f"a {type(value).__name__} for a point; pass two coordinates")
    if len(value) != _COORDINATES:
        raise ChangedValue(f"a point of {len(value)} coordinates for a column with two")
    return value


def geometric(name: str, *, size: int | None, points: int | None) -> Check:
    """The check of a type of `size` parts, if that is fixed, of which the first `points`, or all,
    are points.
    """

    def checked(value: Any) -> Any:
        if value is None:
            return value
        if not is_array(value):
            raise ChangedValue(
                f"a {type(value).__name__} for a {name}; pass a sequence of its parts"
            )
        parts = [*cast("Iterable[Any]", value)]
        if size is not None and len(parts) != size:
            raise ChangedValue(f"{len(parts)} parts for a {name}, which has {size}")
        for each in parts[:points]:
            point(each)
        return value

    return checked


def is_array(value: object) -> bool:
    """Whether drivers take a value as an array: a list, a tuple, or another sized collection."""
    return (
        isinstance(value, Iterable)
        and isinstance(value, Sized)
        and not isinstance(value, NO_ARRAYS)
    )


def elements(check: Check) -> Check:
    """The check of an array's elements, which may be `None` or arrays themselves."""

    def checked(value: Any) -> Any:
        if is_array(value):
            return [checked(each) for each in cast("Iterable[Any]", value)]
        return None if value is None else check(value)

    return checked
