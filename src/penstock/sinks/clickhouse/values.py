"""Values that a column's type holds exactly; any other one fails with its item.

ClickHouse changes values that do not fit and says nothing: 300 becomes 44 in a `UInt8`, a NULL
becomes 0, 1.239 becomes 1.23 in a `Decimal(10, 2)`, a moment of the year 2300 becomes one of 2106 in
a `DateTime`. So a value is checked here, before it is sent, at any depth:

1. A whole number is in the range of its type. Text and floats are none; a bool is 0 or 1.
2. `None` needs a `Nullable`. A column's DEFAULT is for columns that are not sent.
3. A decimal has no more digits than the type. A float is taken as Python shows it.
4. A moment without a zone is in UTC; digits of a second beyond the type's are cut, as everywhere.
5. Types without a rule are left to the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from ..._clients.forms import form_for

if TYPE_CHECKING:
    from .types import ColumnType

Convert = Callable[[Any], Any]
_FLOAT32_MAX = (2 - 2**-23) * 2**127
_DATE = (date(1970, 1, 1), date(2149, 6, 6))
_DATE32 = (date(1900, 1, 1), date(2299, 12, 31))
_DATETIME = (datetime(1970, 1, 1, tzinfo=UTC), datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC))
_DATETIME64 = (datetime(1900, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC))
_NONE = type(None)


@dataclass(frozen=True, slots=True)
class ValueRule:
    """How values of a column are checked."""

    convert: Convert
    """The value as it is sent. Raises `TypeError` or `ValueError`."""
    plain: frozenset[type] = frozenset()
    """Types of values that need only a check of their range, if any."""
    numbers: range | None = None


def rule_of(kind: ColumnType) -> ValueRule:
    """The rule for values of a type."""
    convert = nullable(kind, _converter(kind))
    extra = {_NONE} if kind.is_nullable else set[type]()
    numbers = kind.whole_numbers
    if numbers is not None:
        return ValueRule(convert, frozenset({int, *extra}), numbers)
    match kind.head:
        case "String" | "FixedString" | "UUID" | "IPv4" | "IPv6" | "Enum8" | "Enum16":
            return ValueRule(convert, frozenset({str, *extra}))
        case "Float64":
            return ValueRule(convert, frozenset({float, *extra}))
        case "Bool":
            return ValueRule(convert, frozenset({bool, *extra}))
        case _:
            return ValueRule(convert)


def nullable(kind: ColumnType, convert: Convert) -> Convert:
    """Take `None` if the type does."""
    if kind.is_nullable:
        return lambda value: None if value is None else convert(value)

    def checked(value: Any) -> Any:
        if value is None:
            raise ValueError(f"None for a column of {kind.text}, which holds no NULL")
        return convert(value)

    return checked


def _converter(kind: ColumnType) -> Convert:
    if kind.whole_numbers is not None:
        return _whole(kind, kind.whole_numbers)
    simple = _SIMPLE.get(kind.head)
    if simple is not None:
        return simple
    match kind.head:
        case "Float32" | "BFloat16":
            return _small_float
        case "Decimal":
            return _decimal(kind)
        case "Date":
            return _day(kind, _DATE)
        case "Date32":
            return _day(kind, _DATE32)
        case "DateTime":
            return _moment(kind, _DATETIME)
        case "DateTime64":
            return _moment(kind, _DATETIME64)
        case "Array":
            return _array(kind)
        case "Map":
            return _map(kind)
        case "Tuple":
            return _tuple(kind)
        case _:
            return lambda value: value


def _plain(value: Any) -> Any:
    """The value of an enum's member, and any other value itself."""
    return value.value if isinstance(value, Enum) else value


def _refused(kind: ColumnType | str, value: object) -> Exception:
    name = kind if isinstance(kind, str) else kind.text
    return TypeError(f"{type(value).__name__} for a column of {name}")


def _whole(kind: ColumnType, numbers: range) -> Convert:
    first, last = numbers.start, numbers.stop - 1

    def whole(value: Any) -> int:
        value = _plain(value)
        if not isinstance(value, int):
            raise _refused(kind, value)
        if not first <= value <= last:
            raise ValueError(f"{value} is not in the range of {kind.text}")
        return int(value)

    return whole


def _float(value: Any) -> float:
    value = _plain(value)
    if isinstance(value, (int, float, Decimal)):
        return float(value)
    raise _refused("floats", value)


def _small_float(value: Any) -> float:
    found = _float(value)
    if isfinite(found) and abs(found) > _FLOAT32_MAX:
        raise ValueError(f"{found} is not in the range of Float32")
    return found


def _bool(value: Any) -> bool:
    value = _plain(value)
    if value is True or value is False or (type(value) is int and value in {0, 1}):
        return bool(value)
    raise _refused("Bool", value)


def _text(value: Any) -> Any:
    """Text or bytes; anything else whose form in JSON is a text, such as a UUID."""
    value = _plain(value)
    if isinstance(value, (str, bytes, bytearray)):
        return value
    form = form_for(value)
    found = None if form is None else form(value)
    if isinstance(found, str):
        return found
    raise _refused("text", value)


def _object(value: Any) -> object:
    if isinstance(value, (str, bytes)):
        value = json.loads(value)
    elif not isinstance(value, Mapping):
        form = form_for(value)
        value = value if form is None else form(value)
    if not isinstance(value, Mapping):
        raise _refused("JSON objects", value)
    return cast("object", value)


def _time(value: Any) -> str:
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, str):
        return value
    raise _refused("times of a day", value)


def _decimal(kind: ColumnType) -> Convert:
    scale = kind.scale
    whole_digits = kind.precision - scale

    def decimal(value: Any) -> Decimal:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
            raise _refused(kind, value)
        try:
            found = value if isinstance(value, Decimal) else Decimal(str(value))
        except InvalidOperation:
            raise _refused(kind, value) from None
        digits, exponent = found.normalize().as_tuple()[1:] if found.is_finite() else ((), "")
        if (
            not isinstance(exponent, int)
            or -exponent > scale
            or len(digits) + exponent > whole_digits
        ):
            raise ValueError(f"{found} has more digits than {kind.text}")
        return found

    return decimal


def _day(kind: ColumnType, limits: tuple[date, date]) -> Convert:
    first, last = limits

    def day(value: Any) -> date:
        if isinstance(value, str):
            value = date.fromisoformat(value)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise _refused(kind, value)
        if not first <= value <= last:
            raise ValueError(f"{value} is not in the range of {kind.text}")
        return value

    return day


def _moment(kind: ColumnType, limits: tuple[datetime, datetime]) -> Convert:
    first, end = limits

    def moment(value: Any) -> datetime:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if not isinstance(value, datetime):
            raise _refused(kind, value)
        found = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        if not first <= found < end:
            raise ValueError(f"{value} is not in the range of {kind.text}")
        return found

    return moment


def _array(kind: ColumnType) -> Convert:
    (inner,) = kind.inner
    element = rule_of(inner).convert

    def array(value: Any) -> list[Any]:
        if isinstance(value, (set, frozenset)):
            value = list(cast("frozenset[Any]", value))
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise _refused(kind, value)
        return [element(each) for each in cast("Sequence[Any]", value)]

    return array


def _map(kind: ColumnType) -> Convert:
    key, item = (rule_of(each).convert for each in kind.inner)

    def mapped(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _refused(kind, value)
        named = cast("Mapping[Any, Any]", value)
        return {key(name): item(each) for name, each in named.items()}

    return mapped


def _tuple(kind: ColumnType) -> Convert:
    fields = {
        name: rule_of(each).convert for name, each in zip(kind.names, kind.inner, strict=True)
    }
    is_named = not all(name.isdigit() for name in kind.names)

    def fields_of(value: Any) -> Mapping[str, Any]:
        if isinstance(value, (tuple, list)):
            return dict(zip(kind.names, cast("Sequence[Any]", value), strict=True))
        if not isinstance(value, Mapping):
            form = form_for(value)
            value = value if form is None else form(value)
        if not isinstance(value, Mapping):
            raise _refused(kind, value)
        return cast("Mapping[str, Any]", value)

    def made(value: Any) -> Any:
        given = fields_of(value)
        if given.keys() != fields.keys():
            raise ValueError(f"the fields {[*given]} for a column of {kind.text}")
        found = {name: convert(given[name]) for name, convert in fields.items()}
        return found if is_named else tuple(found.values())

    return made


_SIMPLE: dict[str, Convert] = {
    "Float64": _float,
    "Bool": _bool,
    "JSON": _object,
    "Time": _time,
    "Time64": _time,
    **dict.fromkeys(("String", "FixedString", "UUID", "IPv4", "IPv6", "Enum8", "Enum16"), _text),
}
