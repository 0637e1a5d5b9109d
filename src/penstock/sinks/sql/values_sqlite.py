"""Checks of values that SQLite would store as others.

1. It stores NaN as NULL.
2. It stores a number as a float that does not represent it: a decimal, or a number above 64 bits,
   as text, too, in a column of numbers. The type `JSON` is one of these.
3. It stores the text "007" in a column of numbers as 7.
4. It stores a float in a column of text with 15 digits, unless it gets the text.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..._clients.changed_values import ChangedValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.types import TypeEngine

_PADDED = re.compile(r"\s*[+-]?0[0-9]")
_MOST = 2**63 - 1
"""The highest number that is stored as an integer."""
_OTHERS = frozenset({type(None), bool, bytes})


def sqlite_rule_of(kind: TypeEngine[Any]) -> tuple[frozenset[type], Callable[[Any], Any]]:
    """The types whose values need no check, and the check of others."""
    import sqlalchemy as sa

    if isinstance(kind, (sa.Numeric, sa.Float)):
        return frozenset({type(None), bool}), _exact
    if isinstance(kind, sa.JSON):
        return _OTHERS | {str, dict, list}, _json
    if isinstance(kind, sa.Integer):
        return _OTHERS | {int}, _integer
    if isinstance(kind, sa.String):
        return _OTHERS | {int, str}, _text
    return _OTHERS | {int, str}, _not_nan


def _not_nan(value: Any) -> Any:
    if isinstance(value, float) and value != value:  # noqa: PLR0124  # only NaN is
        raise ChangedValue("NaN, which SQLite stores as NULL")
    return value


def _exact(value: Any) -> Any:
    _not_nan(value)
    if isinstance(value, str):
        if _PADDED.match(value):
            raise ChangedValue(f"{value!r} for a column of numbers, which would lose its zeros")
        try:
            exact = Decimal(value)
        except InvalidOperation:
            return value  # SQLAlchemy refuses it
    elif isinstance(value, (int, Decimal)):
        exact = Decimal(value)
    else:
        return value
    _check_float(exact)
    return value


def _integer(value: Any) -> Any:
    """Text is stored as a number if it is one, otherwise as text."""
    if isinstance(value, str):
        try:
            exact = Decimal(value)
        except InvalidOperation:
            return value
        if exact.is_finite() and not _is_stored_whole(exact):
            _check_float(exact)
        return value
    return _not_nan(value)


def _is_stored_whole(value: Decimal | int) -> bool:
    return -_MOST - 1 <= value <= _MOST and value % 1 == 0


def _check_float(exact: Decimal) -> None:
    if exact.is_finite() and Decimal(repr(float(exact))) != exact:
        raise ChangedValue(f"{exact}, which SQLite stores as the float {float(exact)}")


def _json(value: Any) -> Any:
    if isinstance(value, int) and not _is_stored_whole(value):
        raise ChangedValue(f"{value}, which SQLite stores as the float {float(value)}")
    return _not_nan(value)


def float_text(value: Any) -> Any:
    """A float for a column of text with the digits that Python shows: databases keep fewer."""
    if isinstance(value, float) and isfinite(value):
        return float.__repr__(value)
    return value


def _text(value: Any) -> Any:
    return float_text(_not_nan(value))
