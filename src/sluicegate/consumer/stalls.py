"""Detection of a consumer that makes no progress despite work. Pure.

1. Progress means a settled message. A failed try is not progress.
2. Time counts only while there is work: a message inside, or a record behind the position in a
   partition that may be fetched from.
3. A stall ends with progress, or when no work remains.
"""

from __future__ import annotations

from typing import Literal

Change = Literal["stalled", "moves"]


class StallDetector:
    """Detector of stalls: nothing has been settled for `after` seconds although there is work."""

    def __init__(self, after: float | None) -> None:
        self._after = after
        self.settled = 0
        self._since: float | None = None
        self.is_stalled = False

    def look(self, now: float, settled: int, *, has_work: bool) -> Change | None:
        """Record the number of settled messages at `now`; return the change of state, if any."""
        if settled != self.settled or not has_work:
            self.settled = settled
            self._since = now if has_work else None
            return self._become(stalled=False)
        if self._since is None:
            self._since = now
        is_over = self._after is not None and now - self._since >= self._after
        return self._become(stalled=is_over)

    def idle_for(self, now: float) -> float:
        """Return the seconds without progress despite work."""
        return 0.0 if self._since is None else now - self._since

    def _become(self, *, stalled: bool) -> Change | None:
        if stalled == self.is_stalled:
            return None
        self.is_stalled = stalled
        return "stalled" if stalled else "moves"
