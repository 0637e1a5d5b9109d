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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .._core.values.encoding import form_for
from .scalars import (
    DATE,
    DATE32,
    DATETIME,
    DATETIME64,
    SIMPLE,
    UnfitValue,
    day,
    decimal,
    moment,
    refused,
    small_float,
    whole,
)

if TYPE_CHECKING:
    from .scalars import Convert
    from .types import ColumnType

_NONE = type(None)


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
            raise refused(kind, value)
        return [element(each) for each in cast("Sequence[Any]", value)]

    return array


def _map(kind: ColumnType) -> Convert:
    key, item = (rule_of(each).convert for each in kind.inner)

    def mapped(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise refused(kind, value)
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
            raise refused(kind, value)
        return cast("Mapping[str, Any]", value)

    def made(value: Any) -> Any:
        given = fields_of(value)
        if given.keys() != fields.keys():
            raise UnfitValue(f"the fields {[*given]} for a column of {kind.text}")
        found = {name: convert(given[name]) for name, convert in fields.items()}
        return found if is_named else tuple(found.values())

    return made
