"""Waits in a shutdown, and the longest wait that a destination may request. Pure.

1. Before a shutdown a backoff is kept. When a shutdown begins, a waiting batch tries at once.
2. After that, each wait is at most a quarter of the time left, so the tries come closer together
   towards the deadline and use the time to its end. With 24 s left there are at most 24 waits.
3. A wait that the destination requested (`Retry-After`) is kept whole if a try fits behind it.
4. A try fits while the time left is longer than the last try took. Once none fits, none is made:
   items cut off at the destination would be unknown instead of unsent.
"""

from __future__ import annotations

import math
from typing import SupportsFloat

SHORTEST = 0.02
"""Seconds: the margin after the last try, and the shortest of the shortened waits."""
SHARE = 0.25
LONGEST_ASKED = 300.0
"""Seconds: the default upper bound on a destination's own `Retry-After`."""


def latest_try(cut_at: float, lasts: float) -> float:
    """The latest start of a try of `lasts` seconds, if writes are cut at `cut_at`."""
    return cut_at - lasts - SHORTEST


def next_try(
    now: float, until: float, cut_at: float, *, not_before: float = 0.0, lasts: float = 0.0
) -> float | None:
    """The time of the next try, planned for `until`, before the cut; `None` if none fits.

    `not_before` is the time requested by the destination, `lasts` the expected seconds of a try.
    """
    latest = latest_try(cut_at, lasts)
    if now >= latest:
        return None
    soon = min(until, now + max(SHARE * (latest - now), SHORTEST))
    return min(max(soon, not_before) if not_before <= latest else soon, latest)


def asked_wait(error: BaseException, longest: float) -> float | None:
    """An error's `retry_after` in seconds, from 0 to `longest`; `None` unless it is a number."""
    asked = getattr(error, "retry_after", None)
    if asked is None:  # before the slow check against a Protocol
        return None
    if isinstance(asked, bool) or not isinstance(asked, SupportsFloat):
        return None
    try:
        seconds = float(asked)
    except (OverflowError, ValueError, TypeError):
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), longest)
