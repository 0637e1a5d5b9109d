"""Access to parts of items, and numbers in the form of metrics protocols. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from ..._core.text import repr_of


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
    return f"{value:f}" if isinstance(value, Decimal) else f"{value!r}"
