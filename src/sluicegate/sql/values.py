"""The values that each column takes: a closed table by database, type of column and Python class.

Drivers and databases convert other values in their own ways, some of them into different ones:
`bytes(5)` is five zero bytes, a UUID in a DATETIME is a time of day, NaN in SQLite is NULL.

1. `TAKES` names the classes that a column takes, each with its conversion; `None` is none. Any other
   class is refused, for its item alone.
2. A value of a subclass is that of its class (`exact`): an `IntEnum` is its number. A number of
   another library, such as NumPy, is an `int`, or a `float` if a `float` has its value.
3. A conversion keeps the value, or raises: a number with a fraction is not a whole number, a date
   takes no time of day, a time of day no date and no zone. A text is a number, a date or a time if
   Python reads it as one, a date or a time in ISO form.
4. A time with a zone becomes one in UTC for a column without a zone, of which drivers drop the
   zone. MySQL reads a `TIMESTAMP` in the zone of the session, which must be UTC then.
5. SQLite stores a number as a float that may not represent it: a decimal, or a number above 64 bits.
   So does MySQL in its JSON, with a number above 64 bits.
6. A type that SQLAlchemy does not know takes the classes under `OTHER`.

Decimals are rounded by the database, as in SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from numbers import Integral, Real
from operator import index, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

from .._core.values.changed_values import ChangedValue
from .._core.values.encoding import to_json

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

Processor: TypeAlias = Callable[[Any], Any]
_NONE = type(None)
_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,6})?\s*", re.IGNORECASE | re.ASCII)
_NOT_FINITE = re.compile(r"\s*(?:nan|[-+]?inf(?:inity)?)\s*", re.IGNORECASE)
_PADDED = re.compile(r"\s*[-+]?0\d")
_DURATION = re.compile(r"-?\d{1,3}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?", re.ASCII)
_DAY = timedelta(days=1)
_MYSQL_DIGITS = 65
"""The digits of a DECIMAL."""
_MOST = 2**63 - 1
"""The highest number that SQLite stores as an integer."""
_LONG = re.compile(r"\d{19}")
_NOT_WHOLE = "is not a whole number, but the column has whole numbers"
OTHER = "any other type"
Takes: TypeAlias = Mapping[type, Processor | None]
_BINARY: Takes = {bytes: None, bytearray: bytes, memoryview: bytes}
_UUID: Takes = {UUID: None, str: UUID}
_JSON: Takes = dict.fromkeys((dict, list, tuple, str, bool, int, float))


# -- numbers ---------------------------------------------------------------------------------------


def _whole_float(value: float) -> int:
    if not isfinite(value) or value % 1 != 0:
        raise ChangedValue(f"{value} {_NOT_WHOLE}")
    return int(value)


def _whole_decimal(value: Decimal) -> int:
    if (
        not value.is_finite()
        or value.adjusted() > _MYSQL_DIGITS
        or value != value.to_integral_value()
    ):
        raise ChangedValue(f"{value} {_NOT_WHOLE}")
    return int(value)


def _number(text: str) -> Decimal:
    if _NUMBER.fullmatch(text) is None and _NOT_FINITE.fullmatch(text) is None:
        raise ChangedValue(f"{text[:40]!r} is not a number, but the column has numbers")
    return Decimal(text.strip())


def _whole_text(text: str) -> int:
    return _whole_decimal(_number(text))


def _finite(value: Decimal | float) -> Any:
    if not isfinite(value):
        raise ChangedValue(f"{value}, which the column cannot hold")
    return value


def _digits(value: float) -> Decimal:
    """The decimal that Python shows."""
    return Decimal(float.__repr__(value))


def _mysql_decimal(value: Decimal) -> Any:
    """A literal with an exponent is a float of MySQL, with 17 digits; a text is a decimal."""
    if not value.is_finite() or value.adjusted() >= _MYSQL_DIGITS:
        raise ChangedValue(f"{value}, which the column cannot hold")
    if "E" not in str(value):
        return value
    return format(round(value, 100) if value.adjusted() < -_MYSQL_DIGITS else value, "f")


def _float(value: Decimal | float) -> float:
    """The nearest float."""
    found = float(value)
    if isfinite(value) and not isfinite(found):
        raise ChangedValue(f"{value}, which is above every float")
    return found


def _mysql_float(value: Decimal | float) -> float:
    return _float(_finite(value))


def _not_nan(value: float) -> float:
    if value != value:  # noqa: PLR0124  # only NaN is
        raise ChangedValue("NaN, which SQLite stores as NULL")
    return value


def _sqlite_exact(value: Decimal | int) -> Any:
    """A number that a float represents, for a column of SQLite that stores floats."""
    if isinstance(value, Decimal) and value.is_nan():
        raise ChangedValue("NaN, which SQLite stores as NULL")
    exact = Decimal(value)
    if exact.is_finite() and Decimal(repr(float(exact))) != exact:
        raise ChangedValue(f"{exact}, which SQLite stores as the float {float(exact)}")
    return value


def _sqlite_text(text: str) -> Any:
    if _PADDED.match(text):
        raise ChangedValue(f"{text!r} for a column of numbers, which would lose its zeros")
    return _sqlite_exact(_number(text))


def _sqlite_whole(value: Decimal) -> int | float:
    """An `INTEGER` of SQLite stores a number with a fraction as a float."""
    is_within = value.is_finite() and -_MOST - 1 <= value <= _MOST
    if is_within and value == value.to_integral_value():
        return int(value)
    return float(_sqlite_exact(value))


def _sqlite_whole_text(text: str) -> int | float:
    return _sqlite_whole(_number(text))


def _sqlite_json(value: int) -> int:
    if not -_MOST - 1 <= value <= _MOST:
        raise ChangedValue(f"{value}, which SQLite stores as the float {float(value)}")
    return value


def _truth(value: int) -> bool:
    if value not in {0, 1}:
        raise ChangedValue(f"{value} for a column of truth values")
    return bool(value)


def _bits(value: int) -> int:
    if value < 0:
        raise ChangedValue(f"{value} for a column of bits")
    return value


def _year(value: int) -> int:
    if value != 0 and not 1900 < value < 2156:
        raise ChangedValue(f"{value} for a YEAR, which takes 0 and 1901 to 2155")
    return value


def _year_text(text: str) -> int:
    if re.fullmatch(r"\d{4}", text, re.ASCII) is None:
        raise ChangedValue(f"{text[:40]!r} for a YEAR; pass four digits")
    return _year(int(text))


# -- texts -----------------------------------------------------------------------------------------


def _float_text(value: float) -> str:
    """The digits that Python shows: databases keep fewer."""
    return float.__repr__(_finite(value))


def _decimal_text(value: Decimal) -> str:
    return str(_finite(value))


def _member(names: Sequence[str]) -> Processor:
    """The name of a member: its number, also as text, would select it, too."""
    known = frozenset(names)

    def member(text: str) -> str:
        if text not in known and re.fullmatch(
            r"\s*[-+]?\d*\.?\d*(?:e\d+)?\s*", text, re.IGNORECASE
        ):
            raise ChangedValue(f"{text!r} is not a name of a member")
        return text

    return member


def _members(names: Sequence[str]) -> Processor:
    known = frozenset(names)

    def members(values: Any) -> str:
        if unknown := [each for each in values if each not in known]:
            raise ChangedValue(f"{unknown[0]!r} is not a name of a member")
        return ",".join(values)

    return members


# -- dates and times -------------------------------------------------------------------------------


def _iso(text: str) -> datetime:
    try:
        if text[4:5] == "-" and text[7:8] == "-":
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    raise ChangedValue(
        f"{text[:40]!r} is not a date or time in ISO form; pass a date or a datetime"
    )


def _day(value: datetime) -> date:
    if value.time() != time():
        raise ChangedValue("a time of day for a column of dates; pass its date()")
    return value.date()


def _day_text(text: str) -> date:
    return _day(_iso(text))


def _without_zone(value: time) -> time:
    if value.tzinfo is not None:
        raise ChangedValue("a time of day with a zone for a column without one")
    return value


def _time_text(text: str) -> time:
    try:
        if text[2:3] == ":":
            return time.fromisoformat(text)
    except ValueError:
        pass
    raise ChangedValue(f"{text[:40]!r} is not a time of day in ISO form; pass a time")


def _time_text_without_zone(text: str) -> time:
    return _without_zone(_time_text(text))


def _time_of(value: timedelta) -> time:
    if not timedelta() <= value < _DAY:
        raise ChangedValue("a duration of a day or more for a column of times of a day")
    minutes, seconds = divmod(value.seconds, 60)
    return time(minutes // 60, minutes % 60, seconds, value.microseconds)


def _mysql_duration(value: timedelta) -> str:
    """Drivers write a negative duration as another one."""
    size = abs(value)
    hours, rest = divmod(size.days * 86_400 + size.seconds, 3600)
    sign = "-" if value < timedelta() else ""
    return f"{sign}{hours:02}:{rest // 60:02}:{rest % 60:02}.{size.microseconds:06}"


def _mysql_time_text(text: str) -> str:
    if _DURATION.fullmatch(text) is None:
        raise ChangedValue(f"{text[:40]!r} for a TIME; pass a time or a timedelta")
    return text


def _utc(value: datetime) -> datetime:
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


def _moment(text: str) -> datetime:
    found = _iso(text)
    if found.utcoffset():
        raise ChangedValue("a text with a zone for a column without one; pass a datetime")
    return _utc(found)


def _local(value: datetime) -> datetime:
    if value.tzinfo is not None:
        raise ChangedValue(
            "a time with a zone for a TIMESTAMP, in a session whose zone is not UTC; set it by "
            """engine_options={"connect_args": {"init_command": "SET time_zone = '+00:00'"}}"""
        )
    return value


def _local_text(text: str) -> datetime:
    return _local(_iso(text))


# -- the table -------------------------------------------------------------------------------------

_TRUTH: Takes = {bool: None, int: _truth}
_DATE: Takes = {date: None, datetime: _day, str: _day_text}
_TIME: Takes = {time: _without_zone, timedelta: _time_of, str: _time_text_without_zone}
_DATETIME: Takes = {datetime: _utc, date: None, str: _moment}
_NUMBERS_AS_TEXT: Takes = {
    str: None,
    int: str,
    float: _float_text,
    Decimal: _decimal_text,
    UUID: str,
}
_SQLITE_NUMBERS: Takes = {
    bool: None,
    int: _sqlite_exact,
    float: _not_nan,
    Decimal: _sqlite_exact,
    str: _sqlite_text,
}
TAKES: Mapping[str, Mapping[str, Takes]] = {
    "mysql": {
        "whole numbers": {
            int: None,
            bool: None,
            float: _whole_float,
            Decimal: _whole_decimal,
            str: _whole_text,
        },
        "decimals": {
            int: None,
            bool: None,
            float: lambda value: _mysql_decimal(_digits(value)),
            Decimal: _mysql_decimal,
            str: lambda text: _mysql_decimal(_number(text)),
        },
        "floats": {
            int: None,
            bool: None,
            float: _finite,
            Decimal: _mysql_float,
            str: lambda text: _mysql_float(_number(text)),
        },
        "bits": {int: _bits, bool: int, bytes: None},
        "years": {int: _year, str: _year_text},
        "text": _NUMBERS_AS_TEXT,
        "enums": {str: None},
        "sets": dict.fromkeys((str, set, frozenset, list, tuple)),
        "bytes": _BINARY,
        "dates": _DATE,
        "times": {time: _without_zone, timedelta: _mysql_duration, str: _mysql_time_text},
        "timestamps": _DATETIME,
        "timestamps with a zone": {datetime: _local, date: None, str: _local_text},
        "UUIDs": _UUID,
        "JSON": _JSON,
        OTHER: {str: None, bytes: None},
    },
    "sqlite": {
        "whole numbers": {
            int: None,
            bool: None,
            float: _not_nan,
            Decimal: _sqlite_whole,
            str: _sqlite_whole_text,
        },
        "decimals": _SQLITE_NUMBERS,
        "floats": _SQLITE_NUMBERS,
        "truth values": _TRUTH,
        "text": _NUMBERS_AS_TEXT,
        "bytes": _BINARY,
        "dates": _DATE,
        "times": _TIME,
        "timestamps": _DATETIME,
        "JSON": {**_JSON, int: _sqlite_json, float: _not_nan},
        OTHER: {int: None, bool: None, float: _not_nan, str: None, **_BINARY},
    },
}
"""The classes that a column takes, by database and type; `None` without a conversion.

A "timestamp with a zone" of MySQL is a `TIMESTAMP` in a session whose zone is not UTC.
"""


def _are_literals(values: Sequence[Any]) -> bool:
    decimals = [value for value in values if type(value) is Decimal]
    return all(value.is_finite() and "E" not in str(value) for value in decimals)


def _are_finite(values: Sequence[Any]) -> bool:
    return all(map(isfinite, [value for value in values if type(value) is float]))


KEPT: Mapping[tuple[str, str], tuple[type, Callable[[Sequence[Any]], bool]]] = {
    ("mysql", "decimals"): (Decimal, _are_literals),
    ("mysql", "floats"): (float, _are_finite),
}
"""A class whose values need no conversion if they pass a check of a whole column; for speed."""


# -- values of other classes -----------------------------------------------------------------------


def _datetime(value: datetime) -> datetime:
    if getattr(value, "nanosecond", 0):
        raise ChangedValue("a time with nanoseconds, of which databases keep microseconds")
    at = (value.year, value.month, value.day, value.hour, value.minute, value.second)
    return datetime(*at, value.microsecond, value.tzinfo, fold=value.fold)  # noqa: DTZ001  # its own


def _timedelta(value: timedelta) -> timedelta:
    if getattr(value, "nanoseconds", 0):
        raise ChangedValue("a duration with nanoseconds, of which databases keep microseconds")
    return timedelta(value.days, value.seconds, value.microseconds)


_EXACT: Mapping[type, Processor] = {
    str: str.__str__,
    int: int.__index__,
    float: float.__float__,
    Decimal: Decimal,
    bytes: lambda value: bytes(memoryview(value)),
    bytearray: lambda value: bytearray(memoryview(value)),
    datetime: _datetime,
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time(
        value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold
    ),
    timedelta: _timedelta,
    UUID: lambda value: UUID(int=value.int),
    dict: dict,
    list: list,
    tuple: tuple,
}


def exact(value: Any) -> Any:
    """The same value in a class of Python: of a subclass, or a number or an array of NumPy. Others
    are returned as they are.
    """
    kind: type[Any] = type(cast("object", value))
    if kind is bool:
        return value
    for base, convert in _EXACT.items():
        if isinstance(value, base):
            return value if kind is base else convert(value)
    if isinstance(value, Integral):
        return index(cast("Any", value))
    if isinstance(value, Real):
        found = float(value)
        if found != value and value == value:  # noqa: PLR0124  # not for NaN
            raise ChangedValue(f"a {kind.__name__} that no float represents")
        return found
    if kind.__module__ == "numpy" and kind.__name__ in {"bool", "bool_"}:
        return bool(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.ndim:
        return value.tolist()
    return value


@dataclass(frozen=True, slots=True)
class SqlValueRule:
    """The check of a column's values."""

    family: str
    takes: Takes
    plain: frozenset[type]
    """Classes whose values need no check."""
    are_kept: Callable[[Sequence[Any]], bool] | None = None
    """Whether values of the plain classes need no check either; default: they do not."""

    def convert(self, value: Any) -> Any:
        """Convert a value that is not `None`. Raises `ChangedValue` for one that the column does not
        take.
        """
        found: Any = value
        kind: type[Any] = type(cast("object", value))
        if kind not in self.takes:
            found = exact(value)
            kind = type(cast("object", found))
            if kind not in self.takes:
                names = ", ".join(each.__name__ for each in self.takes)
                told = f"a column of {self.family} takes {names}, not {type(value).__name__}"
                raise ChangedValue(told)
        if (process := self.takes.get(kind)) is not None:
            found = process(found)
        return found


def sql_rule_of(kind: TypeEngine[Any], database: str, *, is_utc: bool) -> SqlValueRule:
    """The rule for a column.

    Args:
        kind: the column's type, as reflected.
        database: the name of its dialect.
        is_utc: whether the time zone of the session is UTC.
    """
    family = family_of(kind, database, is_utc=is_utc)
    if family not in TAKES[database]:
        family = OTHER
    takes = TAKES[database][family]
    if database == "mysql" and family in {"enums", "sets"}:
        names: Sequence[str] = getattr(kind, "enums", None) or cast("Any", kind).values
        member = _member(names)
        takes = {each: member if each is str else _members(names) for each in takes}
    plain = {each for each, convert in takes.items() if convert is None}
    are_kept = None
    if (kept := KEPT.get((database, family))) is not None:
        plain.add(kept[0])
        are_kept = kept[1]
    return SqlValueRule(family, takes, frozenset({_NONE, *plain}), are_kept)


def family_of(kind: TypeEngine[Any], database: str, *, is_utc: bool) -> str:
    """The name in `TAKES` for a type of SQLAlchemy."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql

    if isinstance(kind, sa.DateTime):
        has_zone = database == "mysql" and isinstance(kind, sa.TIMESTAMP) and not is_utc
        return "timestamps with a zone" if has_zone else "timestamps"
    families: Sequence[tuple[str, type[TypeEngine[Any]] | tuple[type[TypeEngine[Any]], ...]]] = (
        ("sets", mysql.SET),
        ("bits", mysql.BIT),
        ("years", mysql.YEAR),
        ("enums", sa.Enum),
        ("JSON", sa.JSON),
        ("truth values", sa.Boolean),
        ("whole numbers", sa.Integer),
        ("floats", sa.Float),
        ("decimals", sa.Numeric),
        ("text", sa.String),
        ("dates", sa.Date),
        ("times", sa.Time),
        ("UUIDs", sa.Uuid),
        (
            "bytes",
            (
                *(sa.LargeBinary, sa.BINARY, sa.VARBINARY),
                *(mysql.TINYBLOB, mysql.MEDIUMBLOB, mysql.LONGBLOB),
            ),
        ),
    )
    return next((name for name, kinds in families if isinstance(kind, kinds)), OTHER)


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


def checked_json(process: Processor, *, has_64_bits: bool) -> Processor:
    """A conversion to JSON that refuses NaN and infinities, which JSON does not have. Values inside
    that are not of JSON have the same form as elsewhere. With `has_64_bits`, for the type of MySQL
    (that of MariaDB is a text), it refuses larger whole numbers, at any depth.
    """

    def checked(value: Any) -> Any:
        try:
            text = process(value)
        except TypeError:  # inside it is a value such as a decimal or a date
            text = process(json.loads(to_json(value)))
        if isinstance(text, str) and ("NaN" in text or "Infinity" in text):
            json.loads(text, parse_constant=_refuse_constant)
        if has_64_bits and isinstance(text, str) and _LONG.search(text):
            json.loads(text, parse_int=_json_of_64_bits)
        return text

    return checked


def _json_of_64_bits(digits: str) -> None:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ChangedValue("a number above 64 bits in JSON, which MySQL stores as a float")


def _refuse_constant(name: str) -> Any:
    raise ChangedValue(f"{name} in a column of JSON, which has no such number")
