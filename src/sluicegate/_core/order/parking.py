"""The policy for the later items of a key after one has failed for good. No clock, task or I/O.

An item has failed for good when it ends as `dead_lettered` or `rejected`. Each tenant has its own
lanes and its own `Parking`.

- `skip`: later items continue.
- `pause`: later items stay in the ledger until `resume(key)`.
- `park`: as `pause`, but at most `max_parked_items` per key. When there are more, the oldest are
  *spilled*: they become dead letters, in order and in one write per key at a time, so the dead
  letters always precede the items in the ledger.
- `fail`: later items in the ledger end as `rejected`, and new ones are refused with
  `KeyFailedError`, until `resume(key)`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from .. import checks
from ..sink import TakesDeadLetters, chain

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .lanes import Lane, Lanes

OnKeyFailure = Literal["skip", "park", "pause", "fail"]
POLICIES: tuple[OnKeyFailure, ...] = ("skip", "park", "pause", "fail")
MOST_PARKED = 1000


def check_store(sink: object) -> None:
    """Check that the parked items of a stack have one store. Raises `ConfigError`."""
    if sum(isinstance(part, TakesDeadLetters) for part in chain(sink)) > 1:
        rule = "needs a single DeadLetter in the stack, whose store has a key's letters in order"
        raise checks.bad("on_key_failure", "park", rule)


class Parking:
    """The policy, and the held lanes that exceed its limit."""

    def __init__(self, policy: OnKeyFailure, most: int) -> None:
        self.policy = policy
        self._most = most
        self._over: deque[Hashable] = deque()
        self._listed: set[Hashable] = set()

    @property
    def holds(self) -> bool:
        return self.policy != "skip"

    @property
    def fails(self) -> bool:
        """Whether later items of a failed key fail as well."""
        return self.policy == "fail"

    def look_at(self, key: Hashable, lane: Lane[Any] | None) -> None:
        """Record a changed lane if it must spill."""
        if self.policy == "park" and self._excess(lane) > 0 and key not in self._listed:
            self._listed.add(key)
            self._over.append(key)

    def _excess(self, lane: Lane[Any] | None) -> int:
        if lane is None or not lane.held or lane.going:
            return 0
        return lane.length - self._most

    def next(self, lanes: Lanes[Any]) -> tuple[Hashable, int] | None:
        """Return a key that must spill, and its excess; once per recording by `look_at`."""
        while self._over:
            key = self._over.popleft()
            self._listed.discard(key)
            excess = self._excess(lanes.lane(key))
            if excess > 0:
                return key, excess
        return None

    @property
    def spills(self) -> bool:
        """Whether there may be a lane that must spill."""
        return bool(self._over)
