"""Validation at construction. Every message gives the argument's name, its value and the rule."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .clock import LOOP_CLOCK
from .errors import ConfigError, SluicegateWarning
from .text import hide_in_repr, repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .clock import Clock

ChoiceT = TypeVar("ChoiceT", bound=str)

LONG_DELAY = 100.0
"""Seconds from which a delay looks like milliseconds: the time until the next short step."""
LONG_TIMEOUT = 1000.0
"""Seconds from which a timeout, a deadline or a lease looks like milliseconds."""
LONG_PERIOD = 10_000.0
"""Seconds from which a period looks like milliseconds: one that may last minutes or hours, such as
a retention.
"""
ANY_LENGTH = math.inf
"""For durations of which no length looks like milliseconds: virtual time, and checked durations."""
_HOUR = 3600
LONGEST_VALUE = 200
"""Maximum length of a value in a message, in characters."""

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_OURS = ("sluicegate", "pyspark_sluicegate")


def bad(name: str, value: object, rule: str) -> ConfigError:
    """Return the error for one bad argument."""
    return ConfigError(f"{name}={shown(value)}: {rule}")


def known_format(name: str, value: object, found: object, known: int = 1) -> None:
    """Raise `ConfigError` for stored data of a format that this release does not know."""
    if found != known:
        rule = (
            f"has format {found}, and this release of Sluicegate knows format {known}: use the "
            "release that wrote it, or a later one; nothing was changed"
        )
        raise bad(name, value, rule)


def shown(value: object) -> str:
    """Return the `repr` of an argument, shortened, without memory addresses and without anything that
    may hold a password: see `hide_in_repr`.
    """
    told = hide_in_repr(_ADDRESS.sub("", repr_of(value)))
    half = LONGEST_VALUE // 2
    return told if len(told) <= LONGEST_VALUE else f"{told[:half]}...{told[-half:]}"


def warn(message: str) -> None:
    """Warn of a likely mistake, at the responsible line of the caller."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, SluicegateWarning, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def seconds(name: str, value: object, *, usual: float, zero: bool = False) -> float:
    """Convert a number of seconds or a `timedelta` to float seconds. Raises `ConfigError`.

    Warns about a whole number of at least `usual`, which looks like milliseconds; not about a float
    such as `1800.0`, a `timedelta`, nor whole hours. `usual` is one of the constants above, by the
    kind of the duration.
    """
    rule = f"must be {'at least 0' if zero else 'more than 0'} seconds (a number or a timedelta)"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad(name, value, rule)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise bad(name, value, rule)
    if isinstance(value, int) and value >= usual and value % _HOUR:
        warn(
            f"{name}={value} is {value} seconds; if you mean milliseconds, write "
            f"{name}={value / 1000:g}, otherwise {name}=timedelta(seconds={value})"
        )
    return float(value)


def in_seconds(duration: float | timedelta) -> float:
    """Return a checked duration in seconds."""
    return duration if isinstance(duration, (int, float)) else duration.total_seconds()


def optional_seconds(name: str, value: object, *, usual: float, zero: bool = False) -> float | None:
    """Like `seconds`, but accept `None`."""
    return None if value is None else seconds(name, value, usual=usual, zero=zero)


def function(name: str, value: object, rule: str, *, takes: int = 1) -> Any:
    """Check that the value is a function of `takes` arguments. Raises `ConfigError`."""
    if not callable(value):
        raise bad(name, value, rule)
    if is_async(value):
        raise bad(name, value, f"{rule}, and not an async one")
    if not accepts(value, takes):
        counted = "one argument" if takes == 1 else f"{takes} arguments"
        raise bad(name, value, f"{rule}, and take {counted}")
    return value


def optional_function(name: str, value: object, rule: str, *, takes: int = 1) -> Any:
    """Like `function`, but accept `None`."""
    return None if value is None else function(name, value, rule, takes=takes)


def is_async(function: object) -> bool:
    """Return whether a call of it returns a coroutine."""
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def accepts(function: object, arguments: int) -> bool:
    """Return whether a callable takes that many positional arguments; true if that is unknown."""
    try:
        inspect.signature(cast("Callable[..., object]", function)).bind(*(None,) * arguments)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        pass
    return True


def flag(name: str, value: object) -> bool:
    """Check that the value is a `bool`. Raises `ConfigError`."""
    if not isinstance(value, bool):
        raise bad(name, value, "must be True or False")
    return value


def count(name: str, value: object, *, least: int = 1) -> int:
    """Check that the value is a whole number of at least `least`. Raises `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise bad(name, value, f"must be a whole number of at least {least}")
    return value


def optional_count(name: str, value: object, *, least: int = 1) -> int | None:
    """Like `count`, but accept `None`."""
    return None if value is None else count(name, value, least=least)


def share(name: str, value: object) -> float:
    """Check that the value is a share: more than 0, at most 1. Raises `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise bad(name, value, "must be a share: more than 0, at most 1")
    return float(value)


def optional_share(name: str, value: object) -> float | None:
    """Like `share`, but accept `None`."""
    return None if value is None else share(name, value)


def optional_rate(name: str, value: object) -> float | None:
    """Check that the value is a number per second above 0, or `None`. Raises `ConfigError`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise bad(name, value, "must be a number per second, more than 0")
    return float(value)


def text(name: str, value: object, *, empty: bool = False) -> str:
    """Check that the value is text without NUL, which no store accepts. Raises `ConfigError`."""
    if not isinstance(value, str) or "\0" in value or not (value or empty):
        raise bad(name, value, f"must be text{'' if empty else ' that is not empty'}, without NUL")
    return value


def choice(name: str, value: ChoiceT, allowed: Iterable[ChoiceT]) -> ChoiceT:
    """Check that the value is one of the allowed words. Raises `ConfigError`."""
    options = tuple(allowed)
    if value not in options:
        raise bad(name, value, "must be one of " + ", ".join(repr(option) for option in options))
    return value


def checked_clock(clock: Clock | None) -> Clock:
    """Check the clock, or choose the loop's."""
    if clock is None:
        return LOOP_CLOCK
    if isinstance(clock, type) or not callable(getattr(clock, "call_at", None)):
        raise bad("clock", clock, "must be a Clock, such as LoopClock(), or None")
    return clock
