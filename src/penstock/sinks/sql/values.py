"""Checks of values that a driver or a database would silently change; such a row fails alone.

1. A number with a fraction is not a whole number: asyncpg truncates it, the databases round it.
2. A time with a zone becomes one in UTC for a column without a zone, of which drivers drop the
   zone. MySQL reads a `TIMESTAMP` in the zone of the session, which must be UTC then.
3. A date takes no time of day, a time of day no date and no zone.
4. SQLite stores decimals as floats, which must be exact, NaN as NULL, and the text "007" in a column
   of numbers as 7. The number of an enum's member, as text, is not its name.
5. asyncpg sends all digits of the binary fraction of a float: a decimal has those of its repr.

Values of other types are left to the driver. Decimals are rounded by the database, as in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..._clients.changed_values import ChangedValue, dateless, day, elements, time_of_day, whole

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

Processor: TypeAlias = Callable[[Any], Any]
_NONE = type(None)
_PADDED = re.compile(r"\s*[+-]?0[0-9]")


@dataclass(frozen=True, slots=True)
class SqlValueRule:
    """The check of a column's values."""

    plain: frozenset[type]
    """Types whose values need no check."""
    convert: Processor
    """Converts a value that is not `None`. Raises `ChangedValue`."""


def sql_rule_of(kind: TypeEngine[Any], database: str, *, is_utc: bool) -> SqlValueRule | None:
    """The rule for a column; `None` if no value needs a check.

    Args:
        kind: the column's type, as reflected.
        database: the name of its dialect.
        is_utc: whether the time zone of the session is UTC.
    """
    import sqlalchemy as sa

    if isinstance(kind, sa.ARRAY):
        element = cast("Any", kind).item_type
        inner = sql_rule_of(element, database, is_utc=is_utc)
        return None if inner is None else SqlValueRule(frozenset({_NONE}), elements(inner.convert))
    if isinstance(kind, sa.Enum) and database == "mysql":
        return SqlValueRule(frozenset({_NONE}), _member(kind.enums))
    if isinstance(kind, sa.DateTime) and not kind.timezone:
        refuses = database == "mysql" and isinstance(kind, sa.TIMESTAMP) and not is_utc
        return SqlValueRule(frozenset({_NONE, str, date}), _local if refuses else _moment)
    if isinstance(kind, sa.Date):
        return SqlValueRule(frozenset({_NONE, str, date}), day)
    if isinstance(kind, sa.Time):
        check = dateless if kind.timezone else time_of_day
        return SqlValueRule(frozenset({_NONE, str}), check)
    if database == "sqlite":
        if isinstance(kind, (sa.Numeric, sa.Float)):
            return SqlValueRule(frozenset({_NONE, bool}), _exact)
        return SqlValueRule(frozenset({_NONE, bool, int, str, bytes}), _not_nan)
    if isinstance(kind, sa.Integer):
        if database == "mysql":
            return SqlValueRule(frozenset({_NONE, bool, int, bytes}), _whole_or_text)
        return SqlValueRule(frozenset({_NONE, bool, int, str}), whole)
    if database != "postgresql":
        return None
    if isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float):
        return SqlValueRule(frozenset({_NONE, bool, int, str, Decimal}), _decimal)
    if isinstance(kind, sa.String):
        return SqlValueRule(frozenset({_NONE, str}), _text)
    return None


def needed(
    rules: Mapping[int, SqlValueRule], rows: Sequence[Sequence[Any]]
) -> dict[int, Processor]:
    """The conversions of these rows, by the place of the column."""
    return {
        place: rule.convert
        for place, rule in rules.items()
        if not rule.plain.issuperset(map(type, map(itemgetter(place), rows)))
    }


def _whole_or_text(value: Any) -> Any:
    if isinstance(value, str):
        try:
            whole(Decimal(value))
        except InvalidOperation:
            pass  # the server refuses it
        return value
    return whole(value)


def _decimal(value: Any) -> Any:
    if isinstance(value, float) and isfinite(value):
        return Decimal(float.__repr__(value))
    return value


def _text(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise ChangedValue("bytes for a column of text; decode them")
    return value


def _moment(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _local(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        raise ChangedValue(
            "a time with a zone for a TIMESTAMP, in a session whose zone is not UTC; set it by "
            """engine_options={"connect_args": {"init_command": "SET time_zone = '+00:00'"}}"""
        )
    return value


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
    if exact.is_finite() and Decimal(repr(float(exact))) != exact:
        raise ChangedValue(f"{exact}, which SQLite stores as the float {float(exact)}")
    return value


def _member(names: Sequence[str]) -> Processor:
    known = frozenset(names)

    def member(value: Any) -> Any:
        if isinstance(value, str) and value not in known and value.strip().isdigit():
            raise ChangedValue(f"{value!r} is not a name of the enum")
        return value

    return member
