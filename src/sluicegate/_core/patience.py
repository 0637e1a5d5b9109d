"""Waits in a shutdown, and the longest wait that a destination may request. Pure.

1. Before a shutdown, backoffs are not shortened. When a shutdown begins, waiting batches are
   attempted immediately.
2. After that, each wait is at most a quarter of the remaining time, so attempts become more
   frequent towards the deadline and use all of the time. With 24 s left there are at most 24 waits.
3. A wait that the destination requested (`Retry-After`) is not shortened if an attempt fits after
   it.
4. An attempt fits if the remaining time is longer than the last attempt took. Otherwise none is
   made: items of a cut-off write would be unknown instead of unsent.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import SupportsFloat

SHORTEST = 0.02
"""Seconds: the margin after the last attempt, and the minimum of shortened waits."""
SHARE = 0.25
LONGEST_ASKED = 300.0
"""Seconds: the default upper limit on a destination's `Retry-After`."""


def latest_try(cut_at: float, lasts: float) -> float:
    """Return the latest start of an attempt of `lasts` seconds if writes are cut at `cut_at`."""
    return cut_at - lasts - SHORTEST


def next_try(
    now: float, until: float, cut_at: float, *, not_before: float = 0.0, lasts: float = 0.0
) -> float | None:
    """Return the time before the cut of the attempt planned for `until`; `None` if none fits.

    `not_before` is the time requested by the destination, `lasts` the expected duration of an
    attempt in seconds.
    """
    latest = latest_try(cut_at, lasts)
    if now >= latest:
        return None
    soon = min(until, now + max(SHARE * (latest - now), SHORTEST))
    return min(max(soon, not_before) if not_before <= latest else soon, latest)


def asked_wait(error: BaseException, longest: float) -> float | None:
    """Return the error's `retry_after`, 0 to `longest` seconds; `None` if it is not a duration."""
    asked = getattr(error, "retry_after", None)
    if asked is None:  # before the slow check against a Protocol
        return None
    if isinstance(asked, timedelta):
        asked = asked.total_seconds()
    if isinstance(asked, bool) or not isinstance(asked, SupportsFloat):
        return None
    try:
        seconds = float(asked)
    except (OverflowError, ValueError, TypeError):
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), longest)
