"""The `Retry-After` header.

1. Nothing here raises: an unreadable header is ignored and must not turn a response into an error.
2. A delay is finite and at most a year. `Retry` decides how much of it to respect.
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
"""Characters of the longest date format."""
_YEAR = 366 * 86_400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seconds_of(headers: Mapping[str, str], wall_time: float) -> float | None:
    """The seconds of a `Retry-After`, a number or a date; `None` if it is absent or unreadable.

    The result is between 0 and a year. A date is relative to the response's own `Date`, which
    cancels clock skew, or else to `wall_time`. Never raises.
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
    """A date in seconds since 1970; `None` if it is unreadable."""
    if value is None or len(value) > _LONGEST_DATE:
        return None
    try:
        found = parsedate_to_datetime(value)
        return (
            (found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - _EPOCH
        ).total_seconds()
    except Exception:  # ValueError, OverflowError and any other error of the parser
        return None
