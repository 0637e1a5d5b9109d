"""Floats that asyncpg would expand, for numeric columns of the table. Pure."""

from __future__ import annotations

from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .lazy import Row

_PLAIN = frozenset({tuple, list})


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
