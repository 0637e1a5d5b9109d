"""Checks of values that a driver or a database would silently change in a column. Pure.

1. A column of whole numbers takes no fraction.
2. A date takes no time of day; a `datetime` at midnight is its date.
3. A time of day takes no date, and no zone unless its column has one.
4. An array is checked by its elements, in any number of dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite
from numbers import Real
from typing import Any, TypeAlias, cast

Check: TypeAlias = Callable[[Any], Any]
"""Returns the value. Raises `ChangedValue`."""
_NUMBERS = (Real, Decimal)
_NO_ARRAYS = (str, bytes, bytearray, memoryview, Mapping)


class ChangedValue(ValueError):
    """A value that would be changed in its column."""


def whole(value: Any) -> Any:
    """Check a value for a column of whole numbers."""
    if isinstance(value, _NUMBERS) and isfinite(value) and value % 1 != 0:
        raise ChangedValue(f"{value} is not a whole number, but the column has whole numbers")
    return value


def day(value: Any) -> Any:
    """Check a value for a column of dates."""
    if isinstance(value, datetime) and value.time() != time():
        raise ChangedValue("a time of day for a column of dates; pass its date()")
    return value


def time_of_day(value: Any) -> Any:
    """Check a value for a column of times of a day without a zone."""
    if isinstance(value, time) and value.tzinfo is not None:
        raise ChangedValue("a time of day with a zone for a column without one")
    return dateless(value)


def dateless(value: Any) -> Any:
    """Check a value for a column of times of a day with a zone."""
    if isinstance(value, date):
        raise ChangedValue("a date for a column of times of a day; pass its time()")
    return value


def is_array(value: object) -> bool:
    """Whether drivers take a value as an array: a list, a tuple, or another sized collection."""
    return (
        isinstance(value, Iterable)
        and isinstance(value, Sized)
        and not isinstance(value, _NO_ARRAYS)
    )


def elements(check: Check) -> Check:
    """The check of an array's elements, which may be `None` or arrays themselves."""

    def checked(value: Any) -> Any:
        if is_array(value):
            return [checked(each) for each in cast("Iterable[Any]", value)]
        return None if value is None else check(value)

    return checked
