"""Items as lines of text: metrics of statsd, and points of InfluxDB's line protocol. Pure.

1. An item is a mapping or an object with attributes.
2. The receiver drops a line that it cannot parse silently, so what a protocol cannot represent is
   refused; nothing is replaced.
3. Numbers and text are written with the methods of `int`, `float` and `str` themselves: a subclass,
   such as an enumeration or `numpy.float64`, may show itself in another form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from .._core.text import repr_of

TYPES = ("c", "g", "ms", "h", "s", "d")
"""Counter, gauge, timer, histogram, set and distribution."""
_NAME = re.compile(r"[^:|@\x00-\x1f\x7f]+")
_TEXT = re.compile(r"[^:|\x00-\x1f\x7f]+")
"""The value of a set."""
_CHANGE = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_TAG = re.compile(r"[^,|\x00-\x1f\x7f]+")
_TAG_KEY = re.compile(r"[^,|:\x00-\x1f\x7f]+")
_BREAK = re.compile(r"[\x00-\x1f\x7f]")
_ENDS = re.compile(r"\\(?=[,= ]|$)")
_SPECIAL = re.compile(r"([,= ])")
_IN_NAME = re.compile(r"([, ])")
_QUOTED = re.compile(r'(["\\])')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def statsd(item: Any) -> str:
    """The line of a metric, with the tags of DogStatsD.

        name:value|type|@sample_rate|#tag:value,tag

    An item has `name`, `value` and `type`, and optionally `sample_rate` and `tags`. Text that would
    be parsed as another part of the line is refused. statsd interprets a gauge with a sign as a
    change of the gauge, DogStatsD as its value; the sign is sent unchanged.

    Raises `ValueError` or `TypeError` for an item that is not a metric.
    """
    name, kind = part_of(item, "name"), part_of(item, "type")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"the name {repr_of(name)} must be a string without ':', '|', '@' or line breaks"
        )
    if kind not in TYPES:
        raise ValueError(f"the type {repr_of(kind)} must be one of {', '.join(TYPES)}")
    line = f"{content(name)}:{_statsd_value(part_of(item, 'value'), kind)}|{content(kind)}"
    rate = part_of(item, "sample_rate")
    if rate is not None:
        line += _rate(rate)
    tags = part_of(item, "tags")
    return f"{line}|#{_statsd_tags(tags)}" if tags else line


def _statsd_value(value: Any, kind: str) -> str:
    if isinstance(value, str):
        allowed = _TEXT if kind == "s" else _CHANGE
        if allowed.fullmatch(value):
            return content(value)
        raise ValueError(f"the value {repr_of(value)} is not valid for the type {kind!r}")
    return number("the value", value)


def _rate(rate: Any) -> str:
    told = number("the sample rate", rate)
    if not 0 < rate <= 1:
        raise ValueError(f"the sample rate {told} must be more than 0 and at most 1")
    return "" if rate == 1 else f"|@{told}"


def _statsd_tags(tags: Any) -> str:
    if isinstance(tags, Mapping):
        given = cast("Mapping[Any, Any]", tags)
        return ",".join([_pair(key, value) for key, value in given.items()])
    if isinstance(tags, str) or not isinstance(tags, (Sequence, set, frozenset)):
        raise TypeError(f"the tags are {type(tags).__name__}; expected a mapping or strings")
    return ",".join([_check(_TAG, tag) for tag in cast("Sequence[Any]", tags)])


def _pair(key: Any, value: Any) -> str:
    name = _check(_TAG_KEY, key)
    if value is None or value == "":
        return name
    return f"{name}:{_check(_TAG, value if isinstance(value, str) else str(value))}"


def _check(pattern: re.Pattern[str], text: Any) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(
            f"the tag {repr_of(text)} must be a string without ',', '|' or line breaks"
        )
    return content(text)


# -- line protocol ---------------------------------------------------------------------------------


def line(item: Any) -> str:
    """The line of a point.

        measurement,tag=value field=1i,other="text" 1700000000000000000

    An item has `measurement` and `fields`, and optionally `tags` and `timestamp`.

    1. Commas, spaces and equals signs are escaped where they would end a part. Two things cannot be
       represented: a line break, and a backslash at the end or before a character that must be
       escaped.
    2. A line that begins with `#` would be a comment.
    3. Whole numbers are integers (`1i`) within 64 bits; booleans, floats and strings have their own
       forms. Fields and tags with `None`, and tags with an empty string, are omitted.

    Raises `ValueError` or `TypeError` for an item that is not a point.
    """
    measurement = _escape("measurement", part_of(item, "measurement"), _IN_NAME)
    if measurement.startswith("#"):
        raise ValueError(f"the measurement {measurement!r} would be a comment")
    fields = ",".join(_fields(_mapping("fields", part_of(item, "fields"))))
    if not fields:
        raise ValueError("a point requires at least one field, and this one has none")
    tags = "".join(_line_tags(_mapping("tags", part_of(item, "tags") or {})))
    return f"{measurement}{tags} {fields}{_time(part_of(item, 'timestamp'))}"


def _line_tags(tags: Mapping[Any, Any]) -> list[str]:
    """The tags sorted by key, as InfluxDB recommends."""
    found = [
        (
            _escape("tag", key),
            _escape("value of a tag", value if isinstance(value, str) else str(value)),
        )
        for key, value in tags.items()
        if value is not None and value != ""
    ]
    return [f",{key}={value}" for key, value in sorted(found)]


def _fields(fields: Mapping[Any, Any]) -> list[str]:
    return [
        f"{_escape('field', key)}={_field_value(value)}"
        for key, value in fields.items()
        if value is not None
    ]


def _field_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not _is_int64(value):
            raise ValueError(f"the whole number {value} has more than 64 bits")
        return f"{whole(value)}i"
    if isinstance(value, str):
        if _BREAK.search(value):
            raise ValueError("the text of a field has a line break")
        return '"' + _QUOTED.sub(r"\\\1", value) + '"'
    return number("the value of a field", value)


def _time(time: Any) -> str:
    """The time in nanoseconds since 1970; empty to use the receiver's clock."""
    if time is None:
        return ""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError("the timestamp has no time zone")
        return f" {(time - _EPOCH) // _MICROSECOND * 1_000}"
    if isinstance(time, bool) or not isinstance(time, int) or not _is_int64(time):
        raise TypeError(f"the timestamp is {repr_of(time)}; expected nanoseconds or a datetime")
    return f" {whole(time)}"


def _is_int64(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63  # `in range(...)` would try each number for a subclass


def _mapping(what: str, given: Any) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"the {what} are {type(given).__name__}; expected a mapping")
    return cast("Mapping[Any, Any]", given)


def _escape(what: str, text: Any, special: re.Pattern[str] = _SPECIAL) -> str:
    if not isinstance(text, str) or not text:
        raise ValueError(f"the {what} {repr_of(text)} must be a non-empty string")
    if _BREAK.search(text) or _ENDS.search(text):
        raise ValueError(
            f"the {what} {text!r} has a line break, or a backslash at an invalid position"
        )
    return special.sub(r"\\\1", content(text))


# -- values ----------------------------------------------------------------------------------------


def part_of(item: Any, name: str) -> Any:
    """An entry of a mapping, or an attribute of another object; `None` if it is missing."""
    if isinstance(item, Mapping):
        return cast("Mapping[str, Any]", item).get(name)
    return getattr(item, name, None)


def number(what: str, value: Any) -> str:
    """A finite number as text. Raises `TypeError` or `ValueError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise TypeError(f"{what} is {type(value).__name__}; expected a number")
    if not math.isfinite(value):
        raise ValueError(f"{what} is {repr_of(value)}; expected a finite number")
    if isinstance(value, Decimal):
        return Decimal.__format__(value, "f")
    return float.__repr__(value) if isinstance(value, float) else whole(value)


def whole(value: int) -> str:
    """A whole number as text."""
    return int.__repr__(value)


def content(text: str) -> str:
    """The content of a string."""
    return str.__str__(text)
