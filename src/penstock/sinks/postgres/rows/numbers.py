"""Numbers and times that asyncpg would truncate or expand, for columns of the table. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ...._core.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .lazy import Row

_PLAIN = frozenset({tuple, list})
_INTEGERS = ("smallint", "integer", "bigint")
_CUT: dict[str, frozenset[type]] = {
    **dict.fromkeys(_INTEGERS, frozenset({float, Decimal})),
    "date": frozenset({datetime}),
    "real": frozenset({float}),
}
"""Types of values that asyncpg truncates to the type of a column."""

_AT_ONCE = 512
"""Number of rows whose columns fit into the processor's cache."""


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


def are_cut(rows: Sequence[Row], places: Mapping[int, str]) -> bool:
    """Whether asyncpg would truncate a value of these rows to the type of its column."""
    return any(
        _CUT[kind].intersection(map(type, map(itemgetter(place), rows)))
        for place, kind in places.items()
    )


def are_whole(rows: Sequence[Row], places: Mapping[int, str]) -> bool:
    """Whether a quick check proves that integer columns contain no floats or decimals except zero.

    A sum is an integer only if all its numbers are integers.
    """
    integers = [place for place, kind in places.items() if kind in _INTEGERS]
    if not integers:
        return True
    try:
        for start in range(0, len(rows), _AT_ONCE):
            columns = _columns(rows[start : start + _AT_ONCE], integers)
            if any(type(sum(filter(None, column))) is not int for column in columns):
                return False
    except Exception:  # a value is not a number
        return False
    return True


def _columns(rows: Sequence[Row], places: Sequence[int]) -> Iterable[Iterable[Any]]:
    """The values at these places; if most places are requested, all rows are transposed at once."""
    if 2 * len(places) <= len(rows[0]):
        return (map(itemgetter(place), rows) for place in places)
    transposed = list(zip(*rows, strict=True))
    return [transposed[place] for place in places]


def fractions(
    rows: Sequence[Row], places: Mapping[int, str], names: Sequence[str]
) -> dict[int, PermanentError]:
    """The errors, by place, of rows with a fraction that asyncpg would drop for an integer column."""
    found: dict[int, PermanentError] = {}
    for column, kind in places.items():
        if kind in _INTEGERS and are_cut(rows, {column: kind}):
            for place, row in enumerate(rows):
                value = row[column]
                if type(value) in _CUT[kind] and (not isfinite(value) or value != int(value)):
                    found.setdefault(
                        place,
                        PermanentError(
                            f"column {names[column]!r}: {value} is not a whole number, but the "
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
