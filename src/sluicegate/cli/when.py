"""Times on the command line."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta

from ..letters.letter import moment

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def when(text: str) -> datetime:
    """Parse an argument as an aware time. Raises `ArgumentTypeError`."""
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        return moment(text)
    except ValueError:
        message = (
            f"{text!r} must be a time such as 2026-01-31T12:00 (UTC without an "
            "offset), or 90m, 12h or 7d ago"
        )
        raise argparse.ArgumentTypeError(message) from None


def age(text: str) -> timedelta:
    """Parse an argument as a time span, such as 90m or 7d. Raises `ArgumentTypeError`."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} must be a time span such as 90m, 12h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
