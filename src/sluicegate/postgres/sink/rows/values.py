"""The rows of a write, and the checks and conversions of their values before they are sent. Pure.

1. asyncpg changes values: it drops the fraction of a number for a column of whole numbers, the time
   of day of a date, the date and the zone of a time of day, and more (`changed_values`). A row with
   such a value fails alone.
2. For json and jsonb columns, `None` is NULL, and text is already JSON text. Any other value is
   encoded, as in a file. In an array column every list or tuple is a dimension, as in any other
   array; the elements are encoded by the same rule. A value without a JSON form fails its row
   alone.
3. asyncpg would expand floats for numeric columns; they become the shortest decimals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import attrgetter, itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

from ...._core.errors import PermanentError
from ...._core.values.changed_values import DECIMAL_DIGITS, NO_ARRAYS, ChangedValue
from ...._core.values.encoding import item_error, json_texts, to_json
from ...client.types import GEOMETRIC, SCALARS, check_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...._core.values.changed_values import Check
    from ..table import TableColumn


Row = Sequence[Any]
_AT_ONCE = 512
"""Number of rows whose columns fit into the processor's cache."""
_SINGLE = frozenset(
    {
        NoneType, bool, bytes, date, datetime, Decimal, dict, float, int, str, time, timedelta, UUID
    }
)  # fmt: skip
"""The usual types of single values."""
_PAIRS = frozenset({list, tuple})
_DECIMALS = frozenset({Decimal})
_NUMBERS = frozenset({bool, int, float, Decimal})
_DURATIONS = frozenset({NoneType, timedelta})
_DAYS = frozenset({NoneType, date})
_TIMES = frozenset({NoneType, time})
_NO_ZONE = frozenset({None})
_zone = attrgetter("tzinfo")
_Made: TypeAlias = tuple[list[Any], dict[int, Exception]]
"""The values, and the error of each value that has no JSON form."""
_READY = frozenset({str, type(None)})
_PLAIN = frozenset({tuple, list})


class LazyRows(Sequence[Row], ABC):
    """Rows in a more efficient form than tuples, until a row is read."""

    @abstractmethod
    def keep(self, places: Sequence[int]) -> LazyRows:
        """Keep only the rows at these places."""

    @abstractmethod
    def fit_to(self, columns: Sequence[TableColumn]) -> LazyRows:
        """Fit the same rows to columns of other types."""

    @abstractmethod
    def refused(self) -> dict[int, PermanentError]:
        """The rows that the server would refuse, as far as that is visible in their values and
        types.
        """

    @abstractmethod
    def unreadable(self) -> dict[int, PermanentError]:
        """The rows that cannot become tuples."""

    @abstractmethod
    def nulls(self, name: str) -> Sequence[int]:
        """The places of the rows with NULL in this column."""

    @abstractmethod
    def latest(self, key: Sequence[str], version: str | None) -> LazyRows:
        """Drop rows that a later row with the same key, or one with a higher version, replaces.

        The others keep their places.
        """

    @abstractmethod
    def tells_apart(self, key: Sequence[str], version: str | None) -> bool:
        """Whether `latest` also leaves one row per key from the server's view."""

    @abstractmethod
    def place(self, line: int) -> int:
        """The place in the write of the row sent as number `line`."""

    @abstractmethod
    def encode(self, *, places: bool) -> Iterator[memoryview] | None:
        """All rows as pieces of binary COPY, optionally with their places in front.

        `None` if impossible.
        """


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
    """The values at these places; if most places are requested, all rows are transposed
    together.
    """
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


def has_no_float(values: Iterable[object]) -> bool:
    """Whether none of these values is a float."""
    return float not in map(type, values)


def has_no_null(values: Iterable[object]) -> bool:
    """Whether none of these values is NULL."""
    return NoneType not in map(type, values)


def has_sequence(values: Iterable[object]) -> bool:
    """Whether asyncpg would take a value in an array for a further dimension, which `unnest` would
    split; alone it is refused, or stored as bytes, for example.
    """
    return any(map(_is_sequence, set(map(type, values)) - _SINGLE))


def _is_sequence(kind: type) -> bool:
    return (
        issubclass(kind, Iterable) and issubclass(kind, Sized) and not issubclass(kind, NO_ARRAYS)
    )


def documents(
    rows: Sequence[Row], places: Mapping[int, bool], names: Sequence[str]
) -> tuple[Sequence[Row], dict[int, PermanentError]]:
    """The rows with JSON text at these places, and an error for each row that has none.

    The values of `places` tell whether the column contains arrays. Rows of text and NULL are
    unchanged.
    """
    refused: dict[int, PermanentError] = {}
    for place, is_array in places.items():
        values: list[Any] = list(map(itemgetter(place), rows))
        if _READY.issuperset(map(type, values)):
            continue
        made, faults = _one_by_one(values, _array) if is_array else _texts(values)
        for index, fault in faults.items():
            what = f"cannot be stored: column {names[place]!r} cannot be encoded"
            refused.setdefault(index, item_error(what, fault))
        columns: list[Sequence[Any]] = [*zip(*rows, strict=True)]
        columns[place] = made
        rows = [*zip(*columns, strict=True)]
    return rows, refused


def _texts(values: list[Any]) -> _Made:
    """Encode the values of a column in one call, or one by one if that fails."""
    indices = [index for index, value in enumerate(values) if not _is_ready(value)]
    try:
        texts = json_texts([values[index] for index in indices])
    except Exception:  # an item is at fault
        return _one_by_one(values, _text)
    made = values.copy()
    for index, text in zip(indices, texts, strict=True):
        made[index] = text
    return made, {}


def _one_by_one(values: list[Any], encode: Callable[[Any], Any]) -> _Made:
    made, faults = values.copy(), dict[int, Exception]()
    for index, value in enumerate(values):
        try:
            made[index] = encode(value)
        except Exception as error:
            faults[index] = error
    return made, faults


def _text(value: Any) -> Any:
    return value if _is_ready(value) else to_json(value).decode()


def _array(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return list(map(_array, cast("Sequence[Any]", value)))
    return _text(value)


def _is_ready(value: object) -> bool:
    return value is None or isinstance(value, str)


def shortest(rows: Sequence[Row], places: Sequence[int]) -> Sequence[Row]:
    """Convert floats for numeric columns to the shortest decimals that read back as the same
    floats.

    asyncpg would send all 55 digits of the binary fraction that represents 0.1. Rows without floats
    at these places are unchanged.
    """
    for place in places:
        kinds = set(map(type, map(itemgetter(place), rows)))
        if any(issubclass(kind, (float, list, tuple)) for kind in kinds):
            rows = [(*row[:place], _decimal(row[place]), *row[place + 1 :]) for row in rows]
    return rows


def _decimal(value: Any) -> Any:
    if isinstance(value, float):
        return Decimal(float.__repr__(value).removesuffix(".0"))
    if type(value) in _PLAIN:
        return [_decimal(each) for each in value]
    return value


def unversioned(
    rows: Sequence[Row], version: str, names: Sequence[str]
) -> dict[int, PermanentError]:
    """The errors, by place, of rows without a value in the column of versions.

    They would never replace another row, and any row would replace them.
    """
    if isinstance(rows, LazyRows):
        places = rows.nulls(version)
    else:
        kinds = [*map(type, map(itemgetter(names.index(version)), rows))]
        places = [place for place, kind in enumerate(kinds) if kind is NoneType]
    text = f"a row without a version (column {version!r}) cannot replace another"
    return {place: PermanentError(text) for place in places}
