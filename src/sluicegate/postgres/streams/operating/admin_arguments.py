"""Slots and points given by an operator. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from ...._core import checks
from ...._core.checks import bad
from ...._core.subscriptions import SLOTS

if TYPE_CHECKING:
    from collections.abc import Collection

ResetPoint = Literal["beginning", "next"] | datetime | int

_POINT = 'must be "beginning", "next", a position of at least 0, or a datetime with a time zone'


def checked_slots(slots: Collection[int]) -> list[int]:
    """Check and sort slots. Raises `ConfigError`."""
    found = sorted(set(slots))
    for slot in found:
        if checks.count("slots", slot, least=0) >= SLOTS:
            raise bad("slots", slot, f"must be below {SLOTS}")
    if not found:
        raise bad("slots", slots, "must name a slot")
    return found


def checked_point(to: object) -> tuple[int | None, datetime | None, str]:
    """Return the point's position, time and text. Raises `ConfigError`."""
    if to == "beginning":
        return 0, None, "beginning"
    if to == "next":
        return None, None, "next"
    if isinstance(to, datetime) and to.utcoffset() is not None:
        return None, to, to.isoformat()
    if isinstance(to, int) and not isinstance(to, bool) and to >= 0:
        return to, None, f"position {to}"
    raise bad("to", to, _POINT)
