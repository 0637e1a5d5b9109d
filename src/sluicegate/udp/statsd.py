"""Items as metrics of statsd, with the tags of DogStatsD. Pure.

    name:value|type|@sample_rate|#tag:value,tag

1. An item is a mapping or an object with attributes: `name`, `value` and `type`, and optionally
   `sample_rate` and `tags`.
2. Text that would be parsed as another part of the line is refused; nothing is replaced.
3. statsd interprets a gauge with a sign as a change of the gauge, DogStatsD as its value. The sign
   is sent unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from .._core.text import repr_of
from .values import content, number, part_of

TYPES = ("c", "g", "ms", "h", "s", "d")
"""Counter, gauge, timer, histogram, set and distribution."""
_NAME = re.compile(r"[^:|@\x00-\x1f\x7f]+")
_TEXT = re.compile(r"[^:|\x00-\x1f\x7f]+")
"""The value of a set."""
_CHANGE = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_TAG = re.compile(r"[^,|\x00-\x1f\x7f]+")
_TAG_KEY = re.compile(r"[^,|:\x00-\x1f\x7f]+")


def statsd(item: Any) -> str:
    """The line of a metric. Raises `ValueError` or `TypeError` for an item that is not a metric."""
    name, kind = part_of(item, "name"), part_of(item, "type")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"the name {repr_of(name)} must be a string without ':', '|', '@' or line breaks"
        )
    if kind not in TYPES:
        raise ValueError(f"the type {repr_of(kind)} must be one of {', '.join(TYPES)}")
    line = f"{content(name)}:{_value(part_of(item, 'value'), kind)}|{content(kind)}"
    rate = part_of(item, "sample_rate")
    if rate is not None:
        line += _rate(rate)
    tags = part_of(item, "tags")
    return f"{line}|#{_tags(tags)}" if tags else line


def _value(value: Any, kind: str) -> str:
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


def _tags(tags: Any) -> str:
    if isinstance(tags, Mapping):
        given = cast("Mapping[Any, Any]", tags)
        return ",".join([_pair(key, value) for key, value in given.items()])
    if isinstance(tags, str) or not isinstance(tags, (Sequence, set, frozenset)):
        raise TypeError(f"the tags are {type(tags).__name__}; expected a mapping or strings")
    return ",".join([_checked(_TAG, tag) for tag in cast("Sequence[Any]", tags)])


def _pair(key: Any, value: Any) -> str:
    name = _checked(_TAG_KEY, key)
    if value is None or value == "":
        return name
    return f"{name}:{_checked(_TAG, value if isinstance(value, str) else str(value))}"


def _checked(pattern: re.Pattern[str], text: Any) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(
            f"the tag {repr_of(text)} must be a string without ',', '|' or line breaks"
        )
    return content(text)
