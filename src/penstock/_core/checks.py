"""Validation at construction. Every message gives the argument's name, its value and the rule."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from .errors import ConfigError
from .text import repr_of

if TYPE_CHECKING:
    from collections.abc import Iterable

ChoiceT = TypeVar("ChoiceT", bound=str)


def bad(name: str, value: object, rule: str) -> ConfigError:
    """The error for one bad argument."""
    return ConfigError(f"{name}={repr_of(value)}: {rule}")


def seconds(name: str, value: object, *, zero: bool = False) -> float:
    """A number of seconds or a `timedelta` as float seconds. Raises `ConfigError`."""
    rule = f"must be {'at least 0' if zero else 'more than 0'} seconds (a number or a timedelta)"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad(name, value, rule)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise bad(name, value, rule)
    return float(value)


def optional_seconds(name: str, value: object, *, zero: bool = False) -> float | None:
    """As `seconds`, with `None` passed through."""
    return None if value is None else seconds(name, value, zero=zero)


def count(name: str, value: object, *, least: int = 1) -> int:
    """A whole number of at least `least`. Raises `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise bad(name, value, f"must be a whole number of at least {least}")
    return value


def optional_count(name: str, value: object, *, least: int = 1) -> int | None:
    """As `count`, with `None` passed through."""
    return None if value is None else count(name, value, least=least)


def share(name: str, value: object) -> float:
    """A share of a whole: more than 0, at most 1. Raises `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise bad(name, value, "must be a share: more than 0, at most 1")
    return float(value)


def optional_share(name: str, value: object) -> float | None:
    """As `share`, with `None` passed through."""
    return None if value is None else share(name, value)


def optional_rate(name: str, value: object) -> float | None:
    """A number per second, more than 0; `None` is passed through. Raises `ConfigError`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise bad(name, value, "must be a number per second, more than 0")
    return float(value)


def text(name: str, value: object, *, empty: bool = False) -> str:
    """Text without NUL, which no destination can keep in a name. Raises `ConfigError`."""
    if not isinstance(value, str) or "\0" in value or not (value or empty):
        raise bad(name, value, f"must be text{'' if empty else ' that is not empty'}, without NUL")
    return value


def choice(name: str, value: ChoiceT, allowed: Iterable[ChoiceT]) -> ChoiceT:
    """One of a fixed set of words. Raises `ConfigError`."""
    options = tuple(allowed)
    if value not in options:
        raise bad(name, value, "must be one of " + ", ".join(repr(option) for option in options))
    return value
