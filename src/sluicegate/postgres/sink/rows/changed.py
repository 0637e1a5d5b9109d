"""Values that asyncpg would change, for columns of the table; such a row fails alone. Pure.

asyncpg drops the fraction of a number for a column of whole numbers, the time of day of a date, the
date and the zone of a time of day, and more (`changed_values`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import attrgetter, itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ...._core.errors import PermanentError
from ...._core.values.changed_values import DECIMAL_DIGITS, NO_ARRAYS, ChangedValue
from ...client.value_checks import GEOMETRIC, SCALARS, check_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...._core.values.changed_values import Check
    from ..plan.table import TableColumn
    from .lazy import Row

_AT_ONCE = 512
"""Number of rows whose columns fit into the processor's cache."""
_SINGLE = frozenset(
    {
        NoneType, bool, bytes, date, datetime, Decimal, dict, float, int, str, time, timedelta, UUID
    }
)  # fmt: skip
"""The usual types of single values."""


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


def _are_durations(values: Iterable[Any]) -> bool:
    return _DURATIONS.issuperset(map(type, values))


def _are_points(values: Iterable[Any]) -> bool:
    found: list[Any] = [*filter(None, values)]
    return _PAIRS.issuperset(map(type, found)) and {2}.issuperset(map(len, found))


def _are_in_range(values: Iterable[Any]) -> bool:
    """Whether decimals are in the range of numeric; other numbers are."""
    found = [*filter(None, values)]
    if not _DECIMALS.issuperset(map(type, found)):
        if not _NUMBERS.issuperset(map(type, found)):
            return False
        found = [value for value in found if type(value) is Decimal]
    return max(map(Decimal.adjusted, found), default=0) < DECIMAL_DIGITS


_PAIRS = frozenset({list, tuple})
_DECIMALS = frozenset({Decimal})
_NUMBERS = frozenset({bool, int, float, Decimal})
_DURATIONS = frozenset({NoneType, timedelta})
_DAYS = frozenset({NoneType, date})
_TIMES = frozenset({NoneType, time})
_NO_ZONE = frozenset({None})
_zone = attrgetter("tzinfo")


@dataclass(frozen=True, slots=True)
class ColumnCheck:
    """The check of the values for one type of column."""

    kind: str
    """The type."""
    are_kept: Callable[[Iterable[Any]], bool]
    """Whether a quick check proves that none of these values would be changed."""
    check: Check


_QUICK: Mapping[str, Callable[[Iterable[Any]], bool]] = {
    "date": _are_days,
    "time without time zone": _are_local,
    "time with time zone": _are_times,
    "interval": _are_durations,
    "numeric": _are_in_range,
    **dict.fromkeys(GEOMETRIC, _are_null),
    "point": _are_points,
}


def column_check(column: TableColumn) -> ColumnCheck | None:
    """The check of a column; `None` if asyncpg would change none of its values."""
    kind = column.kind
    check = SCALARS.get(column.sent_as) if kind is None else check_of(kind)
    if check is None:
        return None
    quick: Callable[[Iterable[Any]], bool] = _are_null
    if kind is None:
        quick = _QUICK.get(column.identity, _are_whole)
    elif kind.element is not None:
        quick = _of_arrays(_QUICK.get(kind.element, _are_whole))
    return ColumnCheck(column.identity, quick, check)


def _of_arrays(
    are_elements_kept: Callable[[Iterable[Any]], bool],
) -> Callable[[Iterable[Any]], bool]:
    def are_kept(values: Iterable[Any]) -> bool:
        """Arrays of one dimension; others are checked value by value."""
        return are_elements_kept(chain.from_iterable(filter(None, values)))

    return are_kept


def are_kept(rows: Sequence[Row], places: Mapping[int, ColumnCheck]) -> bool:
    """Whether a quick check proves that asyncpg would change no value of these rows."""
    if not places:
        return True
    checks = [check.are_kept for check in places.values()]
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
    rows: Sequence[Row], places: Mapping[int, ColumnCheck], names: Sequence[str]
) -> dict[int, PermanentError]:
    """The errors, by place, of rows with a value that asyncpg would change.

    Args:
        rows: the rows.
        places: the checks of the columns that have one, by their places.
        names: the names of all columns.
    """
    found: dict[int, PermanentError] = {}
    if are_kept(rows, places):
        return found
    for column, check in places.items():
        if are_kept(rows, {column: check}):
            continue
        for place, row in enumerate(rows):
            try:
                check.check(row[column])
            except ChangedValue as error:
                text = f"column {names[column]!r} ({check.kind}): {error}"
                found.setdefault(place, PermanentError(text))
            except Exception:  # noqa: S112  # asyncpg refuses the value
                continue
    return found


def are_rounded(rows: Sequence[Row], places: Sequence[int]) -> bool:
    """Whether a value of these columns is a float."""
    return any(float in set(map(type, map(itemgetter(place), rows))) for place in places)


def has_sequence(values: Iterable[object]) -> bool:
    """Whether asyncpg would take a value in an array for a further dimension, which `unnest` would
    split; alone it is refused, or stored as bytes, for example.
    """
    return any(map(_is_sequence, set(map(type, values)) - _SINGLE))


def _is_sequence(kind: type) -> bool:
    return (
        issubclass(kind, Iterable) and issubclass(kind, Sized) and not issubclass(kind, NO_ARRAYS)
    )
