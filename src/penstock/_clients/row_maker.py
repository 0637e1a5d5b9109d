"""Rows created from items; an item that cannot become a row fails alone.

Tuples and lists of the right length are already rows: a batch of only these costs one pass in C and
no copy. A batch of dictionaries also costs one pass in C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .._core.batch import RowBatch
from .postgres.errors import for_item

if TYPE_CHECKING:
    from .._core.batch import Batch

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
