"""Rows as `JSONEachRow`: objects with the names of the table's columns.

A body is one array, so the server refuses it if it is truncated. A body of lines that is cut
between two lines would look complete, and the rows before the cut would be stored. Servers before
22 accept only lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.values.encoding import all_to_json, encoded, to_json
from .scalars import UnfitValue
from .values import rule_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .._core.values.encoding import Records
    from .types import ColumnType
    from .values import ValueRule


class JsonRows:
    """Encodes rows with values for these columns."""

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        self._names = tuple(columns)
        self._rules = tuple(map(rule_of, columns.values()))

    def of_rows(
        self,
        indices: Sequence[int],
        rows: Sequence[Sequence[Any]],
        errors: dict[int, BaseException],
    ) -> Records:
        """A record for each row; a row with an unfit value gets an error."""
        made = encoded(self._all, self._one, rows)
        errors.update({indices[place]: error for place, error in made.errors.items()})
        found = [indices[place] for place in made.indices]
        return type(made)(found, made.records, errors)

    def _all(self, rows: Sequence[Sequence[Any]]) -> list[bytes]:
        columns = map(_checked, self._rules, zip(*rows, strict=True))
        names = self._names
        return all_to_json(
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        )

    def _one(self, row: Sequence[Any]) -> bytes:
        values = zip(self._names, self._rules, row, strict=True)
        return to_json({name: _named(name, rule, value) for name, rule, value in values})


def _checked(rule: ValueRule, values: Sequence[Any]) -> Sequence[Any]:
    if rule.numbers is None and rule.plain.issuperset(map(type, values)):
        return values
    return list(map(rule.convert, values))


def _named(name: str, rule: ValueRule, value: Any) -> Any:
    try:
        return rule.convert(value)
    except UnfitValue as error:
        raise UnfitValue(f"column {name!r}: {error}") from error
