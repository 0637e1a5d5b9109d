"""Arrow columns made from rows or from other columns, without changing a value.

pyarrow itself truncates values that do not fit: a fraction becomes a whole number, a time loses its
fractions of a second, a datetime becomes a date, a time loses its zone, and a structure loses
fields that its type does not have. Here such a value is refused. Only floats may be rounded, to the
precision of their type; one that would become infinite is refused.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyarrow import compute, types

from ..._core.classify import summarized
from ..._core.errors import PermanentError
from ..._core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

pc: Any = compute  # its functions are created at import, so type checkers do not see them
_NONE = type(None)
_TEXTS = frozenset({pa.string(), pa.large_string(), pa.string_view()})
_BINARIES = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})
_TIMES = frozenset({datetime, _NONE})
_FINE = ("us", "ns")
"""The time units that can represent every Python value."""


def made_columns(
    schema: Any, given: Sequence[Any], make: Callable[[Any, Any], Any]
) -> tuple[list[Any], dict[int, BaseException]]:
    """The columns that `make` creates from the given ones, and the errors of rows that do not fit."""
    columns: list[Any] = []
    errors: dict[int, BaseException] = {}
    for field, values in zip(schema, given, strict=True):
        try:
            columns.append(make(values, field))
        except Exception:
            errors |= _errors_of(values, field, make)
    return columns, errors


def _errors_of(
    values: Any, field: Any, make: Callable[[Any, Any], Any]
) -> dict[int, BaseException]:
    errors: dict[int, BaseException] = {}
    for index in range(len(values)):
        try:
            make(values[index : index + 1], field)
        except Exception as error:
            what = f"the item does not fit the column {field.name!r}"
            errors[index] = summarized(PermanentError(f"{what}: {text_of(error)}"), what)
    if not errors:
        raise TypeError(f"the column {field.name!r} cannot be created from its values together")
    return errors


def of_values(values: Sequence[Any], field: Any) -> Any:
    """Convert Python values to a column. Raises if a value does not fit the field or would change."""
    kind = field.type
    made = _of_whole_numbers(values, kind) if types.is_integer(kind) else None
    is_same = made is not None
    if made is None:
        made = pa.array(values, kind)
        is_same = _keeps(kind, values) and not _is_infinite(made)
    _require(made, field)
    if not is_same:
        for value, stored in zip(values, made.to_pylist(), strict=True):
            if not _same(value, stored):
                raise ValueError(f"the value would change when stored as {kind}")
    return made


def _of_whole_numbers(values: Sequence[Any], kind: Any) -> Any:
    """A column of values that pyarrow itself takes for whole numbers; `None` for any others.

    To convert and then check the type of each value would take half as long again.
    """
    with suppress(pa.ArrowException, OverflowError):
        made: Any = pa.array(values)
        if types.is_integer(made.type) or types.is_null(made.type):
            return made.cast(kind)
    return None


def of_column(column: Any, field: Any) -> Any:
    """Convert a column. Raises if a value, or the type, does not fit the field."""
    made = column if column.type == field.type else _converted(column, field.type)
    _require(made, field)
    return made


def _converted(column: Any, kind: Any) -> Any:
    if types.is_null(column.type):
        return column.cast(kind)
    if _family(column.type) != _family(kind):
        raise TypeError(f"a column of type {column.type} does not fit {kind}")
    if types.is_dictionary(column.type) and not types.is_dictionary(kind):
        column = column.dictionary_decode()
    made = column.cast(kind)  # raises if a value would be truncated, but rounds to a decimal
    if types.is_decimal(kind) and types.is_floating(column.type):
        is_same = made.cast(column.type).equals(column)
    else:
        is_same = not _is_infinite(made, beyond=column)
    if not is_same:
        raise ValueError(f"the value would change when stored as {kind}")
    return made


def _require(column: Any, field: Any) -> None:
    """Check that no value is missing where the field, at any depth, requires one."""
    if column.null_count and not field.nullable:
        raise ValueError("the value is missing, but the column requires one")
    for child, of in _children(column, field.type):
        _require(child, of)


def _children(column: Any, kind: Any) -> Sequence[tuple[Any, Any]]:
    """The columns inside a nested one, without those of missing values, and their fields."""
    if types.is_struct(kind):
        return [*zip(column.drop_null().flatten(), kind, strict=True)]
    if types.is_map(kind):
        return [(column.drop_null().items, kind.item_field)]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [(column.flatten(), kind.value_field)]
    return ()


def _is_infinite(column: Any, *, beyond: Any = None) -> bool:
    """Whether a number may have become infinite in a column of small floats."""
    if not types.is_floating(column.type) or column.type == pa.float64():
        return False
    found = pc.is_inf(column)
    if beyond is not None and types.is_floating(beyond.type):
        found = pc.and_not(found, pc.is_inf(beyond))
    return pc.any(found).as_py() is True


def _family(kind: Any) -> object:
    """The family of a type. Within a family, a cast preserves a value or raises."""
    if types.is_timestamp(kind):
        return ("timestamp", kind.tz is None)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_dictionary(kind):
        return _family(kind.value_type)
    if kind in _TEXTS:
        return "text"
    if kind in _BINARIES:
        return "binary"
    if types.is_time(kind):
        return "time"
    if types.is_date(kind):
        return "date"
    return "duration" if types.is_duration(kind) else kind


def _keeps(kind: Any, values: Sequence[Any]) -> bool:
    """Whether none of these values can change in a column of this type."""
    if types.is_timestamp(kind):
        return (
            kind.unit in _FINE
            and _TIMES.issuperset(map(type, values))
            and all((value.tzinfo is None) is (kind.tz is None) for value in values if value)
        )
    if types.is_integer(kind):
        return False  # those that can be kept are whole numbers, made above
    if types.is_date(kind):
        return {date, _NONE}.issuperset(map(type, values))
    if types.is_time(kind):
        return (
            kind.unit in _FINE
            and {time, _NONE}.issuperset(map(type, values))
            and all(value.tzinfo is None for value in values if value is not None)
        )
    return not (types.is_nested(kind) or types.is_duration(kind) or types.is_dictionary(kind))


def _same(given: Any, stored: Any) -> bool:
    """Whether a value that was read back equals the given one."""
    if isinstance(given, Mapping):
        named = cast("Mapping[Any, Any]", given)
        if isinstance(stored, list):  # pairs of a map
            stored = dict(cast("list[tuple[Any, Any]]", stored))
            return named.keys() == stored.keys() and _same_items(named, stored)
        return (
            isinstance(stored, dict)
            and named.keys() <= stored.keys()
            and _same_items(named, stored)
        )
    if isinstance(stored, (list, tuple)):
        if isinstance(given, (str, bytes, bytearray, memoryview)):
            return False  # it would become a list of its characters
        listed, values = list(given), cast("Sequence[Any]", stored)
        return len(listed) == len(values) and all(map(_same, listed, values))
    if isinstance(stored, float):
        return isinstance(given, (int, float)) and (
            math.isnan(given) if math.isnan(stored) else math.isclose(given, stored, rel_tol=1e-3)
        )
    if isinstance(given, datetime) != isinstance(stored, datetime):
        return False
    if isinstance(given, datetime):
        if (given.tzinfo is None) != (stored.tzinfo is None):
            return False
        if given.tzinfo is not None:  # in an hour that occurs twice, == is always false
            return bool(given.astimezone(UTC) == stored.astimezone(UTC))
    return bool(given == stored)


def _same_items(named: Mapping[Any, Any], stored: Any) -> bool:
    return all(_same(value, stored[key]) for key, value in named.items())
