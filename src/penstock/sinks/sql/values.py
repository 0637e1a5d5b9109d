"""Checks of values that a driver or a database would silently change; such a row fails alone.

1. A number with a fraction is not a whole number: asyncpg truncates it, the databases round it.
2. A time with a zone becomes one in UTC for a column without a zone, of which drivers drop the
   zone. MySQL reads a `TIMESTAMP` in the zone of the session, which must be UTC then.
3. A date takes no time of day, a time of day no date and no zone.
4. The number of a member of an enum or a set is not its name.
5. asyncpg sends all digits of the binary fraction of a float: a decimal has those of its repr.

Values of other types are left to the driver. Decimals are rounded by the database, as in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..._clients.changed_values import (
    DECIMAL_DIGITS,
    ChangedValue,
    dateless,
    day,
    decimal,
    elements,
    is_dateless,
    time_of_day,
    whole,
)
from .values_sqlite import float_text, sqlite_rule_of

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

    from ..._clients.changed_values import Check

Processor: TypeAlias = Callable[[Any], Any]
_NONE = type(None)
_TEXTS = frozenset({_NONE, bool, int, str, bytes, Decimal})
_OFFSET = re.compile(r":\d{2}(?:\.\d+)?\s*[-+](?!00(?::?00)?$)\d")
"""A zone other than UTC at the end of a text."""


@dataclass(frozen=True, slots=True)
class SqlValueRule:
    """The check of a column's values."""

    plain: frozenset[type]
    """Types whose values need no check."""
    convert: Processor
    """Converts a value that is not `None`. Raises `ChangedValue`."""
    are_kept: Callable[[Sequence[Any]], bool] | None = None
    """Whether values of the plain types need no check either; default: they do not."""


def sql_rule_of(
    kind: TypeEngine[Any], database: str, *, is_utc: bool, own: Check | None = None
) -> SqlValueRule | None:
    """The rule for a column; `None` if no value needs a check.

    Args:
        kind: the column's type, as reflected.
        database: the name of its dialect.
        is_utc: whether the time zone of the session is UTC.
        own: the check by the type in the database, for types that SQLAlchemy does not know.
    """
    import sqlalchemy as sa
    from sqlalchemy.dialects.mysql import BIT, SET, YEAR
    from sqlalchemy.dialects.postgresql import DOMAIN

    if isinstance(kind, DOMAIN):
        return sql_rule_of(kind.data_type, database, is_utc=is_utc, own=own)
    if isinstance(kind, sa.ARRAY):
        element = cast("Any", kind).item_type
        inner = sql_rule_of(element, database, is_utc=is_utc)
        checked = own if inner is None else elements(inner.convert)
        if checked is None:
            return SqlValueRule(frozenset({_NONE, list}), _array)
        return SqlValueRule(frozenset({_NONE}), lambda value: checked(_array(value)))
    if isinstance(kind, sa.Enum) and database == "mysql":
        return SqlValueRule(frozenset({_NONE}), _member(kind.enums))
    if isinstance(kind, SET):
        return SqlValueRule(frozenset({_NONE}), _member(kind.values))
    if isinstance(kind, sa.DateTime) and not kind.timezone:
        refuses = database == "mysql" and isinstance(kind, sa.TIMESTAMP) and not is_utc
        return SqlValueRule(frozenset({_NONE, date}), _local if refuses else _moment)
    if isinstance(kind, sa.Date):
        return SqlValueRule(frozenset({_NONE, date}), day)
    if isinstance(kind, sa.Time):
        check = dateless if kind.timezone else time_of_day
        return SqlValueRule(
            frozenset({_NONE}), _within_day(check) if database == "postgresql" else check
        )
    if database == "sqlite":
        return SqlValueRule(*sqlite_rule_of(kind))
    if database == "mysql":
        if isinstance(kind, (sa.Integer, BIT, YEAR)):
            return SqlValueRule(frozenset({_NONE, bool, int, bytes}), _whole_or_text)
        if isinstance(kind, sa.String):
            return SqlValueRule(_TEXTS, float_text)
        return None
    if isinstance(kind, sa.Integer):
        return SqlValueRule(frozenset({_NONE, bool, int, str}), whole)
    if isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float):
        return SqlValueRule(frozenset({_NONE, bool, int, Decimal}), _decimal, _are_in_range)
    if isinstance(kind, sa.String):
        return SqlValueRule(frozenset({_NONE, str}), _text)
    return None if own is None else SqlValueRule(frozenset({_NONE}), own)


def needed(
    rules: Mapping[int, SqlValueRule], rows: Sequence[Sequence[Any]]
) -> dict[int, Processor]:
    """The conversions of these rows, by the place of the column."""
    found: dict[int, Processor] = {}
    for place, rule in rules.items():
        values = [*map(itemgetter(place), rows)]
        is_plain = rule.plain.issuperset(map(type, values))
        if not is_plain or (rule.are_kept is not None and not rule.are_kept(values)):
            found[place] = rule.convert
    return found


def _array(value: Any) -> Any:
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        raise ChangedValue("a text for a column of arrays, whose characters would be its elements")
    return value


def _within_day(check: Processor) -> Processor:
    """Also refuse durations of which PostgreSQL would drop the days."""

    def checked(value: Any) -> Any:
        if isinstance(value, timedelta) and value.days:
            raise ChangedValue("a duration of a day or more for a column of times of a day")
        return check(value)

    return checked


def _whole_or_text(value: Any) -> Any:
    if isinstance(value, str):
        try:
            whole(Decimal(value))
        except InvalidOperation:
            pass  # the server refuses it
        return value
    return whole(value)


def _are_in_range(values: Sequence[Any]) -> bool:
    decimals = [value for value in values if type(value) is Decimal]
    return max(map(Decimal.adjusted, decimals), default=0) < DECIMAL_DIGITS


def _decimal(value: Any) -> Any:
    if isinstance(value, float) and isfinite(value):
        return Decimal(float.__repr__(value))
    return decimal(value)


def _text(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise ChangedValue("bytes for a column of text; decode them")
    return value


def _moment(value: Any) -> Any:
    if isinstance(value, str) and _OFFSET.search(value) is not None:
        raise ChangedValue("a text with a zone for a column without one; pass a datetime")
    return _checked_moment(value)


def _checked_moment(value: Any) -> Any:
    if is_dateless(value):
        raise ChangedValue("a time without a date for a column of timestamps")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _local(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        raise ChangedValue(
            "a time with a zone for a TIMESTAMP, in a session whose zone is not UTC; set it by "
            """engine_options={"connect_args": {"init_command": "SET time_zone = '+00:00'"}}"""
        )
    return _checked_moment(value)


def _member(names: Sequence[str]) -> Processor:
    known = frozenset(names)

    def member(value: Any) -> Any:
        text = str(value) if isinstance(value, (str, int, float, Decimal)) else ""
        if text.strip().isdigit() and (not isinstance(value, str) or text not in known):
            raise ChangedValue(f"{value!r} is not a name of a member")
        return value

    return member
