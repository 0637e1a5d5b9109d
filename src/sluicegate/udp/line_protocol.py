"""Items as points of InfluxDB's line protocol. Pure.

    measurement,tag=value field=1i,other="text" 1700000000000000000

1. An item is a mapping or an object with attributes: `measurement` and `fields`, and optionally
   `tags` and `timestamp`.
2. Commas, spaces and equals signs are escaped where they would end a part. Two things cannot be
   represented and are refused: a line break, and a backslash at the end or before a character that
   must be escaped.
3. A line that begins with `#` is refused: it would be a comment, which the receiver drops silently.
4. Whole numbers are integers (`1i`) within 64 bits; booleans, floats and strings have their own
   forms. Fields and tags with `None`, and tags with an empty string, are omitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from .._core.text import repr_of
from .values import content, number, part_of, whole

_BREAK = re.compile(r"[\x00-\x1f\x7f]")
_ENDS = re.compile(r"\\(?=[,= ]|$)")
_SPECIAL = re.compile(r"([,= ])")
_IN_NAME = re.compile(r"([, ])")
_QUOTED = re.compile(r'(["\\])')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def line(item: Any) -> str:
    """The line of a point. Raises `ValueError` or `TypeError` for an item that is not a point."""
    measurement = _escaped("measurement", part_of(item, "measurement"), _IN_NAME)
    if measurement.startswith("#"):
        raise ValueError(f"the measurement {measurement!r} would be a comment")
    fields = ",".join(_fields(_mapping("fields", part_of(item, "fields"))))
    if not fields:
        raise ValueError("a point requires at least one field, and this one has none")
    tags = "".join(_tags(_mapping("tags", part_of(item, "tags") or {})))
    return f"{measurement}{tags} {fields}{_time(part_of(item, 'timestamp'))}"


def _tags(tags: Mapping[Any, Any]) -> list[str]:
    """The tags sorted by key, as InfluxDB recommends."""
    found = [
        (
            _escaped("tag", key),
            _escaped("value of a tag", value if isinstance(value, str) else str(value)),
        )
        for key, value in tags.items()
        if value is not None and value != ""
    ]
    return [f",{key}={value}" for key, value in sorted(found)]


def _fields(fields: Mapping[Any, Any]) -> list[str]:
    return [
        f"{_escaped('field', key)}={_value(value)}"
        for key, value in fields.items()
        if value is not None
    ]


def _value(value: Any) -> str:
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


def _escaped(what: str, text: Any, special: re.Pattern[str] = _SPECIAL) -> str:
    if not isinstance(text, str) or not text:
        raise ValueError(f"the {what} {repr_of(text)} must be a non-empty string")
    if _BREAK.search(text) or _ENDS.search(text):
        raise ValueError(
            f"the {what} {text!r} has a line break, or a backslash at an invalid position"
        )
    return special.sub(r"\\\1", content(text))
