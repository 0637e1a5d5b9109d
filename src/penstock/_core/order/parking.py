"""What becomes of a key's later items when one of them has failed for good: decided here, without
clock, task or I/O.

An item has failed for good when it ends `dead_lettered` or `rejected`. With tenants, each has lanes
and a `Parking` of its own.

- `skip`: nothing. The later items go on.
- `pause`: the later items stay in the ledger until `resume(key)`.
- `park`: the same, but of each key at most `max_parked_items`. What is more is *spilled*: the
  oldest go to the dead letters, in order and one write of a key at a time, so that the dead letters
  always hold what comes before, and the ledger what comes after.
- `fail`: the later items that are inside end `rejected`, and new ones are refused with
  `KeyFailedError`, until `resume(key)`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .lanes import Lane, Lanes

OnKeyFailure = Literal["skip", "park", "pause", "fail"]
POLICIES: tuple[OnKeyFailure, ...] = ("skip", "park", "pause", "fail")
MOST_PARKED = 1000


class Parking:
    """Which held lanes hold too much."""

    def __init__(self, policy: OnKeyFailure, most: int) -> None:
        self.policy = policy
        self._most = most
        self._over: deque[Hashable] = deque()
        self._listed: set[Hashable] = set()

    @property
    def holds(self) -> bool:
        """Whether a failure stops its key at all."""
        return self.policy != "skip"

    @property
    def fails(self) -> bool:
        """Whether later items of a failed key fail as well."""
        return self.policy == "fail"

    def look_at(self, key: Hashable, lane: Lane[Any] | None) -> None:
        """Something has changed about this lane: note whether it has to spill."""
        if (
            self.policy == "park"
            and lane is not None
            and lane.held
            and not lane.going
            and lane.length > self._most
            and key not in self._listed
        ):
            self._listed.add(key)
            self._over.append(key)

    def next(self, lanes: Lanes[Any]) -> tuple[Hashable, int] | None:
        """A key that has to spill, and how many; each is told of once, until `look_at` finds it
        again.
        """
        while self._over:
            key = self._over.popleft()
            self._listed.discard(key)
            lane = lanes.lane(key)
            if lane is not None and lane.held and not lane.going and lane.length > self._most:
                return key, lane.length - self._most
        return None

    @property
    def spills(self) -> bool:
        """Whether a lane may have to spill."""
        return bool(self._over)
