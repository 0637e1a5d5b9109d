"""Items as lines of text: metrics of statsd. Pure.

1. An item is a mapping or an object with attributes.
2. The receiver drops a line that it cannot parse silently, so what the protocol cannot represent is
   refused; nothing is replaced.
3. Numbers and text are written with the methods of `int`, `float` and `str` themselves: a subclass,
   such as an enumeration or `numpy.float64`, may show itself in another form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
    return float.__repr__(value) if isinstance(value, float) else int.__repr__(value)


def content(text: str) -> str:
    """The content of a string."""
    return str.__str__(text)
