"""Check that a column's type holds a value exactly; the item of any other value fails.

ClickHouse silently changes values that do not fit: 300 becomes 44 in a `UInt8`, a NULL becomes 0,
1.239 becomes 1.23 in a `Decimal(10, 2)`, a time in the year 2300 becomes one in 2106 in a
`DateTime`. So each value is checked here before it is sent, at any depth:

1. A whole number is in the range of its type. Text and floats are not accepted; a bool is 0 or 1.
2. `None` requires a `Nullable`. A column's DEFAULT applies only to columns that are not sent.
3. A decimal has no more digits than the type. A float is taken as Python displays it.
4. A time without a zone is in UTC; fractions of a second beyond the type's precision are truncated,
   as everywhere.
5. Types without a rule are left to the server.

Types of ClickHouse's columns, parsed from the server's text form.

`Nullable`, `LowCardinality` and `SimpleAggregateFunction` are wrappers: the type of a value is the
wrapped type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from math import isfinite
from operator import index
from typing import Any, cast

from .._core.values.encoding import form_for

_NONE = type(None)
_FLOAT32_MAX = (2 - 2**-23) * 2**127
DATE = (date(1970, 1, 1), date(2149, 6, 6))
DATE32 = (date(1900, 1, 1), date(2299, 12, 31))
DATETIME = (datetime(1970, 1, 1, tzinfo=UTC), datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC))
DATETIME64 = (datetime(1900, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC))
"""The first and the last value of each of these types."""
_WHOLE = re.compile(r"(U?)Int(8|16|32|64|128|256)")
_FIELD = re.compile(r"(`(?:[^`\\]|\\.)+`|[A-Za-z_][A-Za-z0-9_]*) (.+)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NULLS = frozenset({"Variant", "Dynamic", "Nothing"})
"""Types that contain NULL without `Nullable`."""
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ValueRule:
    """The check for the values of a column."""

    convert: Convert
    """Converts a value to the form that is sent. Raises `UnfitValue`."""
    plain: frozenset[type] = frozenset()
    """Types whose values need only a range check, if any."""
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
    """Also accept `None` if the type is nullable."""
    if kind.is_nullable:
        return lambda value: None if value is None else convert(value)

    def checked(value: Any) -> Any:
        if value is None:
            raise UnfitValue(f"None for a column of {kind.text}, which is not Nullable")
        return convert(value)

    return checked


def _converter(kind: ColumnType) -> Convert:
    if kind.whole_numbers is not None:
        return whole(kind, kind.whole_numbers)
    simple = SIMPLE.get(kind.head)
    if simple is not None:
        return simple
    match kind.head:
        case "Float32" | "BFloat16":
            return small_float
        case "Decimal":
            return decimal(kind)
        case "Date":
            return day(kind, DATE)
        case "Date32":
            return day(kind, DATE32)
        case "DateTime":
            return moment(kind, DATETIME)
        case "DateTime64":
            return moment(kind, DATETIME64)
        case "Array":
            return _array(kind)
        case "Map":
            return _map(kind)
        case "Tuple":
            return _tuple(kind)
        case _:
            return lambda value: value


def _array(kind: ColumnType) -> Convert:
    (inner,) = kind.inner
    element = rule_of(inner).convert

    def array(value: Any) -> list[Any]:
        if isinstance(value, (set, frozenset)):
            value = list(cast("frozenset[Any]", value))
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise misfit(kind, value)
        return [element(each) for each in cast("Sequence[Any]", value)]

    return array


def _map(kind: ColumnType) -> Convert:
    key, item = (rule_of(each).convert for each in kind.inner)

    def mapped(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise misfit(kind, value)
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
            given = cast("Sequence[Any]", value)
            if len(given) != len(kind.names):
                raise UnfitValue(f"{len(given)} values for a column of {kind.text}")
            return dict(zip(kind.names, given, strict=True))
        if not isinstance(value, Mapping):
            form = form_for(value)
            value = value if form is None else form(value)
        if not isinstance(value, Mapping):
            raise misfit(kind, value)
        return cast("Mapping[str, Any]", value)

    def made(value: Any) -> Any:
        given = fields_of(value)
        if given.keys() != fields.keys():
            raise UnfitValue(f"the fields {[*given]} for a column of {kind.text}")
        found = {name: convert(given[name]) for name, convert in fields.items()}
        return found if is_named else tuple(found.values())

    return made


# -- scalars ---------------------------------------------------------------------------------------


class UnfitValue(ValueError):
    """A value that its column cannot hold."""


def _plain(value: Any) -> Any:
    """The value of an enum member; any other value unchanged."""
    return value.value if isinstance(value, Enum) else value


def misfit(kind: ColumnType | str, value: object) -> UnfitValue:
    """The error for a value whose Python type is never accepted."""
    name = kind if isinstance(kind, str) else kind.text
    return UnfitValue(f"{type(value).__name__} for a column of {name}")


def _read(kind: ColumnType | str, read: Convert, text: Any) -> Any:
    try:
        return read(text)
    except ValueError:
        raise misfit(kind, text) from None


def whole(kind: ColumnType, numbers: range) -> Convert:
    """Convert whole numbers in a range."""
    first, last = numbers.start, numbers.stop - 1

    def convert(value: Any) -> int:
        try:
            found = index(_plain(value))
        except TypeError:
            raise misfit(kind, value) from None
        if not first <= found <= last:
            raise UnfitValue(f"{found} is not in the range of {kind.text}")
        return found

    return convert


def float_of(value: Any) -> float:
    """Convert a number to a float."""
    value = _plain(value)
    if isinstance(value, (int, float, Decimal)):
        return float(value)
    raise misfit("floats", value)


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
    raise misfit("Bool", value)


def text_of(value: Any) -> Any:
    """Convert text, bytes, or a value that is a string in JSON, such as a UUID."""
    value = _plain(value)
    if isinstance(value, (str, bytes, bytearray)):
        return value
    form = form_for(value)
    found = None if form is None else form(value)
    if isinstance(found, str):
        return found
    raise misfit("text", value)


def object_of(value: Any) -> object:
    """Convert a mapping, or the JSON text of one."""
    if isinstance(value, (str, bytes)):
        value = _read("JSON objects", json.loads, value)
    elif not isinstance(value, Mapping):
        form = form_for(value)
        value = value if form is None else form(value)
    if not isinstance(value, Mapping):
        raise misfit("JSON objects", value)
    return cast("object", value)


def time_of(value: Any) -> str:
    """Convert a time of day to text."""
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, str):
        return value
    raise misfit("times of a day", value)


def decimal(kind: ColumnType) -> Convert:
    """Convert numbers with at most the digits of the type."""
    scale = kind.scale
    whole_digits = kind.precision - scale

    def convert(value: Any) -> Decimal:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
            raise misfit(kind, value)
        try:
            found = value if isinstance(value, Decimal) else Decimal(str(value))
        except InvalidOperation:
            raise misfit(kind, value) from None
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
    """Convert days within the limits, including text in ISO 8601."""
    first, last = limits

    def convert(value: Any) -> date:
        if isinstance(value, str):
            value = _read(kind, date.fromisoformat, value)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise misfit(kind, value)
        if not first <= value <= last:
            raise UnfitValue(f"{value} is not in the range of {kind.text}")
        return value

    return convert


def moment(kind: ColumnType, limits: tuple[datetime, datetime]) -> Convert:
    """Convert times within the limits, including text in ISO 8601, to UTC."""
    first, end = limits

    def convert(value: Any) -> datetime:
        if isinstance(value, str):
            value = _read(kind, datetime.fromisoformat, value)
        if not isinstance(value, datetime):
            raise misfit(kind, value)
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


# -- types -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column type. `head` is its name without arguments."""

    text: str
    head: str
    arguments: tuple[str, ...] = ()
    """The arguments as the server writes them, unless they are types."""
    inner: tuple[ColumnType, ...] = ()
    """The types of an array's elements, of a map's keys and values, or of a tuple's fields."""
    names: tuple[str, ...] = ()
    """The names of a tuple's fields; unnamed fields are numbered from 1."""
    is_nullable: bool = False

    @property
    def whole_numbers(self) -> range | None:
        """The range of an integer type; `None` for any other type."""
        found = _WHOLE.fullmatch(self.head)
        if found is None:
            return None
        bits = int(found[2])
        return range(2**bits) if found[1] else range(-(2 ** (bits - 1)), 2 ** (bits - 1))

    @property
    def scale(self) -> int:
        """Digits after the decimal point, of decimals and of times."""
        numbers = [int(each) for each in self.arguments if each.isdigit()]
        if self.head == "Decimal":
            return numbers[1] if len(numbers) > 1 else 0
        return numbers[0] if numbers else 0

    @property
    def precision(self) -> int:
        """Total digits of a decimal."""
        return int(self.arguments[0])


def parse_type(text: str) -> ColumnType:
    """Parse a type. Never raises: an unknown type is a head without parts."""
    text = text.strip()
    head, paren, rest = text.partition("(")
    if not paren or not rest.endswith(")"):
        return ColumnType(text, text, is_nullable=text in _NULLS)
    arguments = _arguments(rest[:-1])
    match head:
        case "Nullable":
            return replace(parse_type(arguments[0]), text=text, is_nullable=True)
        case "LowCardinality" | "SimpleAggregateFunction":
            return replace(parse_type(arguments[-1]), text=text)
        case "Array" | "Map":
            return ColumnType(text, head, inner=tuple(map(parse_type, arguments)))
        case "Tuple":
            fields = [_field(each, place) for place, each in enumerate(arguments, 1)]
            names = tuple(name for name, _ in fields)
            return ColumnType(text, head, inner=tuple(kind for _, kind in fields), names=names)
        case _:
            return ColumnType(text, head, tuple(arguments), is_nullable=head in _NULLS)


def _field(text: str, place: int) -> tuple[str, ColumnType]:
    found = _FIELD.fullmatch(text)
    if found is None:
        return str(place), parse_type(text)
    name = found[1]
    if name.startswith("`"):
        name = _ESCAPED.sub(r"\1", name[1:-1])
    return name, parse_type(found[2])


def _arguments(text: str) -> list[str]:
    """Split at the commas outside parentheses and quotes."""
    found: list[str] = []
    depth, start, quote, place = 0, 0, "", 0
    while place < len(text):
        each = text[place]
        if quote:
            if each == "\\":
                place += 1
            elif each == quote:
                quote = ""
        elif each in "'`":
            quote = each
        elif each in "()":
            depth += 1 if each == "(" else -1
        elif each == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
        place += 1
    found.append(text[start:].strip())
    return found
