"""Numbers, times and text as the templates show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..letters.text import as_json, printable, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def number(value: float | None) -> str:
    """Format with separators of thousands; a dash for nothing."""
    if value is None:
        return "–"  # noqa: RUF001  # a dash
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def counted(value: int, noun: str) -> str:
    """Format a number of things."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def at_most(value: int, limit: int) -> str:
    """Format a count that ends at a limit."""
    return f"{value:,}+" if value >= limit else f"{value:,}"


def duration(value: float | timedelta | None) -> str:
    """Format seconds with the two largest units."""
    if value is None:
        return "–"  # noqa: RUF001
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 10:
        return f"{sign}{seconds:.1f} s"
    left, parts = int(seconds), list[str]()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
        left %= size
    return sign + " ".join(parts)


def moment(value: datetime | None) -> str:
    """Format a time in UTC, to the second."""
    if value is None:
        return "–"  # noqa: RUF001
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def plain(value: object) -> str:
    """Format text without control characters, which could reorder what is shown."""
    return printable(str(value))


def reason(value: object) -> str:
    """Format a reason, which may quote an error, without anything that may be a password."""
    return printable(without_secrets(str(value)))


def as_text(value: object) -> str:
    """Format a payload as JSON."""
    return as_json(value, encoding="utf-8", indent=2)


FILTERS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each for each in (number, at_most, duration, moment, plain, reason, as_text)
}
