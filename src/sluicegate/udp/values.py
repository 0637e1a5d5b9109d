"""Access to parts of items, and numbers in the form of metrics protocols. Pure.

Numbers and text are written with the methods of `int`, `float` and `str` themselves: a subclass,
such as an enumeration or `numpy.float64`, may show itself in another form, which the receiver would
drop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from .._core.text import repr_of


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
