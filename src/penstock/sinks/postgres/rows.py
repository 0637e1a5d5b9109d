"""Items to rows: an item that cannot become a row fails alone.

Tuples and lists of the right length are rows already; a batch of nothing else costs one pass in C
and no copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from math import isfinite
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, cast

from ..._clients.postgres.errors import for_item
from ..._core.batch import RowBatch
from ..._core.errors import PermanentError

if TYPE_CHECKING:
    from ..._core.batch import Batch
    from .table import Column

Row = Sequence[Any]
RowFunction = Callable[[Any], Row]
_PLAIN = frozenset({tuple, list})
_INTEGERS = ("smallint", "integer", "bigint")
_CUT: dict[str, frozenset[type]] = {
    **dict.fromkeys(_INTEGERS, frozenset({float, Decimal})),
    "date": frozenset({datetime}),
    "real": frozenset({float}),
}
"""Values that asyncpg cuts to the type of a column."""


class LazyRows(Sequence[Row], ABC):
    """Rows that are something better than tuples as long as nobody looks at them."""

    @abstractmethod
    def kept(self, places: Sequence[int]) -> LazyRows:
        """Only the rows at these places."""

    @abstractmethod
    def by(self, columns: Sequence[Column]) -> LazyRows:
        """The same rows for columns of the table that have other types."""

    @abstractmethod
    def refused(self) -> dict[int, PermanentError]:
        """The rows that the server would refuse, as far as their values show it, by the types of
        the columns.
        """

    @abstractmethod
    def unreadable(self) -> dict[int, PermanentError]:
        """The rows that tuples cannot be made of."""

    @abstractmethod
    def latest(self, key: Sequence[str], version: str | None) -> LazyRows:
        """Without the rows that a later one of their key (or one of a higher version) replaces;
        they keep their places.
        """

    @abstractmethod
    def tells_apart(self, key: Sequence[str]) -> bool:
        """Whether `latest` leaves one row of a key, and not only one of those that look alike."""

    @abstractmethod
    def place(self, line: int) -> int:
        """The place in the write of the row that is sent as number `line`."""

    @abstractmethod
    def encoded(self, *, places: bool) -> memoryview | None:
        """All rows as binary COPY, with their places in front where asked for; `None` where that
        cannot be had.
        """


def shortest(rows: Sequence[Row], places: Sequence[int]) -> Sequence[Row]:
    """The rows with the floats at `places`, which go to numeric columns, as the shortest decimals
    that read back as the same floats.

    asyncpg would write down all 55 digits of the binary fraction that stands for 0.1. Rows without
    floats there stay as they are.
    """
    for place in places:
        kinds = set(map(type, map(itemgetter(place), rows)))
        if any(issubclass(kind, (float, list, tuple)) for kind in kinds):
            rows = [(*row[:place], _decimal(row[place]), *row[place + 1 :]) for row in rows]
    return rows


def are_cut(rows: Sequence[Row], places: Mapping[int, str]) -> bool:
    """Whether asyncpg would cut a value of these rows to the type of its column."""
    return any(
        _CUT[kind].intersection(map(type, map(itemgetter(place), rows)))
        for place, kind in places.items()
    )


def fractions(
    rows: Sequence[Row], places: Mapping[int, str], names: Sequence[str]
) -> dict[int, PermanentError]:
    """The rows with a number that its integer column cannot hold, by their place: asyncpg would cut
    its fraction.
    """
    found: dict[int, PermanentError] = {}
    for column, kind in places.items():
        if kind in _INTEGERS and are_cut(rows, {column: kind}):
            for place, row in enumerate(rows):
                value = row[column]
                if type(value) in _CUT[kind] and (not isfinite(value) or value != int(value)):
                    found.setdefault(
                        place,
                        PermanentError(
                            f"column {names[column]!r}: {value} is no whole number, and the "
                            f"column is {kind}"
                        ),
                    )
    return found


def _decimal(value: Any) -> Any:
    if isinstance(value, float):
        return Decimal(float.__repr__(value).removesuffix(".0"))
    if type(value) in _PLAIN:
        return [_decimal(each) for each in value]
    return value


class RowMaker:
    """Makes a row of each item: by `row` where it is given, else by position, by name or by
    attribute.
    """

    def __init__(self, columns: tuple[str, ...], row: RowFunction | None) -> None:
        self._columns = columns
        self._row = row
        getter = attrgetter(*columns) if all("." not in column for column in columns) else None
        self._attributes: Callable[[Any], Any] | None = getter

    def rows(self, batch: Batch[Any]) -> tuple[Sequence[int], Sequence[Row], dict[int, Exception]]:
        """The indices that have a row, their rows, and an error for each other index. Does not
        suspend.
        """
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        rows = self._all_at_once(items)
        return self._one_by_one(items) if rows is None else (range(len(items)), rows, {})

    def _all_at_once(self, items: Sequence[Any]) -> Sequence[Row] | None:
        """Every row, if all of them are plain and of the right length: the usual case, without a
        check in Python per row.
        """
        rows: Sequence[Any] = items
        if self._row is not None:
            try:
                rows = list(map(self._row, items))
            except Exception:  # some item is at fault: one by one tells which
                return None
        return (
            rows
            if _PLAIN.issuperset(map(type, rows)) and set(map(len, rows)) == {len(self._columns)}
            else None
        )

    def _one_by_one(
        self, items: Sequence[Any]
    ) -> tuple[Sequence[int], Sequence[Row], dict[int, Exception]]:
        indices: list[int] = []
        rows: list[Row] = []
        errors: dict[int, Exception] = {}
        for index, item in enumerate(items):
            try:
                row = self._checked(self._row_of(item) if self._row is None else self._row(item))
            except Exception as error:
                errors[index] = for_item(error)
            else:
                indices.append(index)
                rows.append(row)
        return indices, rows, errors

    def _row_of(self, item: Any) -> object:
        if isinstance(item, (tuple, list)):
            return cast("Row", item)
        if isinstance(item, Mapping):
            named = cast("Mapping[str, Any]", item)
            missing = [column for column in self._columns if column not in named]
            if missing:
                raise KeyError("the item has no " + ", ".join(map(repr, missing)))
            return [named[column] for column in self._columns]
        if self._attributes is None:
            raise TypeError(f"{type(item).__name__}: expected a sequence or a mapping")
        found = self._attributes(item)
        return found if len(self._columns) > 1 else (found,)

    def _checked(self, row: object) -> Row:
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence):
            raise TypeError(
                f"{type(row).__name__}: a row is a sequence of {len(self._columns)} values"
            )
        found = cast("Row", row)
        if len(found) != len(self._columns):
            raise ValueError(f"{len(found)} values for {len(self._columns)} columns")
        return found
