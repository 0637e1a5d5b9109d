"""Rows created from items; an item that cannot become a row fails alone.

Tuples and lists of the right length are already rows: a batch of only these costs one pass in C and
no copy. A batch of dictionaries also costs one pass in C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..batch import RowBatch
from ..errors import PermanentError
from .encoding import item_error

if TYPE_CHECKING:
    from ..batch import Batch

Row: TypeAlias = Sequence[Any]
RowFunction = Callable[[Any], Row]
"""Returns the row of an item: a value for each column."""
GivenRows: TypeAlias = tuple[Sequence[int], Sequence[Row], dict[int, Exception]]
"""The indices that have a row, their rows, and an error for each other index."""
_PLAIN = frozenset({tuple, list})
_DICT = frozenset({dict})


class RowMaker:
    """Creates a row from each item: with `row`, if given, or by position, name or attribute."""

    def __init__(self, columns: tuple[str, ...], row: RowFunction | None) -> None:
        self._columns = columns
        self._row = row
        getter = attrgetter(*columns) if all("." not in column for column in columns) else None
        self._attributes: Callable[[Any], Any] | None = getter
        # with one column it would not return a tuple
        self._of_dict = itemgetter(*columns) if len(columns) > 1 else None

    def rows(self, batch: Batch[Any]) -> GivenRows:
        """Create rows; each index has a row or an error. Does not suspend."""
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        rows = self._all_at_once(items)
        return self._one_by_one(items) if rows is None else (range(len(items)), rows, {})

    def _all_at_once(self, items: Sequence[Any]) -> Sequence[Row] | None:
        """Return all rows if all are plain and of the right length; without Python code per row."""
        rows: Sequence[Any] = items
        if self._row is not None:
            try:
                rows = list(map(self._row, items))
            except Exception:  # an item is invalid: the slow path finds it
                return None
        elif self._of_dict is not None and _DICT.issuperset(map(type, items)):
            try:
                return list(map(self._of_dict, items))
            except KeyError:
                return None
        return (
            rows
            if _PLAIN.issuperset(map(type, rows)) and set(map(len, rows)) == {len(self._columns)}
            else None
        )

    def _one_by_one(self, items: Sequence[Any]) -> GivenRows:
        indices: list[int] = []
        rows: list[Row] = []
        errors: dict[int, Exception] = {}
        for index, item in enumerate(items):
            try:
                row = self._checked(self._row_of(item) if self._row is None else self._row(item))
            except PermanentError as error:
                errors[index] = error
            except Exception as error:
                errors[index] = item_error("cannot become a row", error)
            else:
                indices.append(index)
                rows.append(row)
        return indices, rows, errors

    def _row_of(self, item: Any) -> object:
        if isinstance(item, (tuple, list)):
            return cast("Row", item)
        if isinstance(item, Mapping):
            named = cast("Mapping[str, Any]", item)
            self._check_fields([column for column in self._columns if column not in named])
            return [named[column] for column in self._columns]
        if self._attributes is None or isinstance(item, (str, bytes, type(None))):
            raise self._no_row(f"it is a {type(item).__name__}, and no mapping or sequence")
        self._check_fields([column for column in self._columns if not hasattr(item, column)])
        found = self._attributes(item)
        return found if len(self._columns) > 1 else (found,)

    def _check_fields(self, missing: Sequence[str]) -> None:
        if missing:
            raise self._no_row(f"it has no {', '.join(map(repr, missing))}")

    def _checked(self, row: object) -> Row:
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence):
            raise self._no_row(f"row= returned a {type(row).__name__}, and no sequence")
        found = cast("Row", row)
        if len(found) != len(self._columns):
            given = "it has" if self._row is None else "row= returned"
            raise self._no_row(f"{given} {len(found)} values for {len(self._columns)} columns")
        return found

    @staticmethod
    def _no_row(fault: str) -> PermanentError:
        """The error of an item, in words without its values, which may be logged."""
        return PermanentError(f"the item cannot become a row: {fault}")
