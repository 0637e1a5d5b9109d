"""Conversions of values of scalar types to the form that is sent; see `values` for the rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from math import isfinite
from operator import index
from typing import TYPE_CHECKING, Any, cast

from .._core.values.encoding import form_for

if TYPE_CHECKING:
    from .types import ColumnType

Convert = Callable[[Any], Any]
_FLOAT32_MAX = (2 - 2**-23) * 2**127
DATE = (date(1970, 1, 1), date(2149, 6, 6))
DATE32 = (date(1900, 1, 1), date(2299, 12, 31))
DATETIME = (datetime(1970, 1, 1, tzinfo=UTC), datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC))
DATETIME64 = (datetime(1900, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC))


class UnfitValue(ValueError):
    """A value that its column cannot hold."""


def _plain(value: Any) -> Any:
    """The value of an enum member; any other value unchanged."""
    return value.value if isinstance(value, Enum) else value


def refused(kind: ColumnType | str, value: object) -> UnfitValue:
    """The error for a value whose Python type is never accepted."""
    name = kind if isinstance(kind, str) else kind.text
    return UnfitValue(f"{type(value).__name__} for a column of {name}")


def _read(kind: ColumnType | str, read: Convert, text: Any) -> Any:
    try:
        return read(text)
    except ValueError:
        raise refused(kind, text) from None


def whole(kind: ColumnType, numbers: range) -> Convert:
    """Convert whole numbers in a range."""
    first, last = numbers.start, numbers.stop - 1

    def convert(value: Any) -> int:
        try:
            found = index(_plain(value))
        except TypeError:
            raise refused(kind, value) from None
        if not first <= found <= last:
            raise UnfitValue(f"{found} is not in the range of {kind.text}")
        return found

    return convert


def float_of(value: Any) -> float:
    """Convert a number to a float."""
    value = _plain(value)
    if isinstance(value, (int, float, Decimal)):
        return float(value)
    raise refused("floats", value)


def small_float(value: Any) -> float:
    """Convert a number to a float in the range of `Float32`."""
    found = float_of(value)
    if isfinite(found) and abs(found) > _FLOAT32_MAX:
        raise UnfitValue(f"{found} is not in the range of Float32")
    return found


def bool_of(value: Any) -> bool:
    """Convert a bool, or 0 or 1."""
    value = _plain(value)
    if value is True or value is False or (type(value) is int and value in {0, 1}):
        return bool(value)
    raise refused("Bool", value)


def text_of(value: Any) -> Any:
    """Convert text, bytes, or a value that is a string in JSON, such as a UUID."""
    value = _plain(value)
    if isinstance(value, (str, bytes, bytearray)):
        return value
    form = form_for(value)
    found = None if form is None else form(value)
    if isinstance(found, str):
        return found
    raise refused("text", value)


def object_of(value: Any) -> object:
    """Convert a mapping, or the JSON text of one."""
    if isinstance(value, (str, bytes)):
        value = _read("JSON objects", json.loads, value)
    elif not isinstance(value, Mapping):
        form = form_for(value)
        value = value if form is None else form(value)
    if not isinstance(value, Mapping):
        raise refused("JSON objects", value)
    return cast("object", value)


def time_of(value: Any) -> str:
    """Convert a time of day to text."""
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, str):
        return value
    raise refused("times of a day", value)


def decimal(kind: ColumnType) -> Convert:
    """Convert numbers with at most the digits of the type."""
    scale = kind.scale
    whole_digits = kind.precision - scale

    def convert(value: Any) -> Decimal:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
            raise refused(kind, value)
        try:
            found = value if isinstance(value, Decimal) else Decimal(str(value))
        except InvalidOperation:
            raise refused(kind, value) from None
        digits, exponent = found.normalize().as_tuple()[1:] if found.is_finite() else ((), "")
        if (
            not isinstance(exponent, int)
            or -exponent > scale
            or len(digits) + exponent > whole_digits
        ):
            raise UnfitValue(f"{found} has more digits than {kind.text}")
        return found

    return convert


def day(kind: ColumnType, limits: tuple[date, date]) -> Convert:
    """Convert days, also in ISO 8601, within the limits."""
    first, last = limits

    def convert(value: Any) -> date:
        if isinstance(value, str):
            value = _read(kind, date.fromisoformat, value)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise refused(kind, value)
        if not first <= value <= last:
            raise UnfitValue(f"{value} is not in the range of {kind.text}")
        return value

    return convert


def moment(kind: ColumnType, limits: tuple[datetime, datetime]) -> Convert:
    """Convert times, also in ISO 8601, in UTC, within the limits."""
    first, end = limits

    def convert(value: Any) -> datetime:
        if isinstance(value, str):
            value = _read(kind, datetime.fromisoformat, value)
        if not isinstance(value, datetime):
            raise refused(kind, value)
        found = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        if not first <= found < end:
            raise UnfitValue(f"{value} is not in the range of {kind.text}")
        return found

    return convert


SIMPLE: dict[str, Convert] = {
    "Float64": float_of,
    "Bool": bool_of,
    "JSON": object_of,
    "Time": time_of,
    "Time64": time_of,
    **dict.fromkeys(("String", "FixedString", "UUID", "IPv4", "IPv6", "Enum8", "Enum16"), text_of),
}
