"""The `Retry-After` header.

1. Nothing here raises: an unreadable header has no meaning, and must not turn an answer into an
   error.
2. A wait is finite and at most a year. How long a wait may really be is for `Retry` to decide.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS = re.compile(r"\s*([+-]?)([0-9]{1,400}(?:\.[0-9]{1,400})?)\s*")
_LONGEST_DATE = 64
"""Characters; no form of a date is longer."""
_YEAR = 366 * 86_400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seconds_of(headers: Mapping[str, str], wall_time: float) -> float | None:
    """The seconds of a `Retry-After`, given as a number or as a date; `None` without one, or for
    one that cannot be read.

    The result is between 0 and a year. A date is taken relative to the answer's own `Date`, so that
    a difference between the clocks does not matter, else to `wall_time`. Never raises.
    """
    value = headers.get("retry-after")
    if value is None:
        return None
    found = _SECONDS.fullmatch(value)
    if found is not None:
        seconds = 0.0 if found[1] == "-" else float(found[2])
    else:
        until = _date(value)
        if until is None:
            return None
        now = _date(headers.get("date"))
        seconds = until - (wall_time if now is None else now)
    return min(max(0.0, seconds), _YEAR)


def _date(value: str | None) -> float | None:
    """A date in seconds since 1970; `None` for one that cannot be read."""
    if value is None or len(value) > _LONGEST_DATE:
        return None
    try:
        found = parsedate_to_datetime(value)
        return (
            (found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - _EPOCH
        ).total_seconds()
    except (
        Exception
    ):  # ValueError, OverflowError, and whatever else its parser meets: there is no date
        return None
