"""Keys stopped by a failed item, or by one that returned to its source. No clock, task or I/O.

An item has failed for good when it ends as `dead_lettered` or `rejected`. Each tenant has its own
lanes and its own `Parking`, the policy for the later items of its key:

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
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..._core.order.lanes import Lane, Lanes
    from ..ledger import Ledger
    from .eras import Eras, Waiting
    from .pack import Leftover, Sealed


OnKeyFailure = Literal["skip", "park", "pause", "fail"]
POLICIES: tuple[OnKeyFailure, ...] = ("skip", "park", "pause", "fail")
MOST_PARKED = 1000

T = TypeVar("T")

LEFT: Hashable = object()
"""Represents the key of an item that has left its batch."""


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


class KeyHolds(Generic[T]):
    """The held lanes. `go` begins the turn of a released item."""

    def __init__(
        self,
        lanes: Lanes[Waiting[T]],
        parking: Parking,
        eras: Eras[T],
        ledger: Ledger,
        go: Callable[[Waiting[T] | None, float], None],
    ) -> None:
        self._lanes = lanes
        self._parking = parking
        self._eras = eras
        self._ledger = ledger
        self._go = go
        self._failed: list[Waiting[T]] = []
        self._is_stopping = False

    @property
    def keys(self) -> int:
        """Number of held keys."""
        return self._lanes.held

    @property
    def items(self) -> int:
        """Number of queued items of held keys."""
        if not self._lanes.held:
            return 0
        return sum(lane.length for _, lane in self._lanes.lanes() if lane.held)

    def until(self, number: int) -> int:
        """Count the queued items of held keys in eras up to this number."""
        if not self._lanes.held:
            return 0
        held = (lane for _, lane in self._lanes.lanes() if lane.held)
        return sum(1 for lane in held for entry in lane if entry.era <= number)

    @property
    def refuses(self) -> bool:
        """Whether an item may be refused because of its key."""
        return bool(self._lanes.held) and self._parking.fails

    @property
    def spills(self) -> bool:
        """Whether a lane holds more than its bound."""
        return self._parking.spills and not self._is_stopping

    def stop(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Hold the keys of these items."""
        for index in indices:
            key = batch.lanes[index]
            if key is not LEFT:
                self._lanes.hold(key)

    def wait(self, entries: Sequence[Waiting[T]]) -> None:
        """Put items into their lanes, and check the held lanes."""
        self._lanes.wait_all(entries)
        if self._lanes.held:
            for entry in entries:
                if self._lanes.is_held(entry.lane_key):
                    self.look_at(entry.lane_key)

    def look_at(self, key: Hashable) -> None:
        """Fail or spill a held lane after a new item, or after its turn."""
        lane = self._lanes.lane(key)
        fails = self._parking.fails and not self._is_stopping
        if fails and lane is not None and lane.held and not lane.going:
            dropped = self._lanes.drop_all(key)
            for entry in dropped:
                self._eras.left_lane(entry.era)
            self._failed += dropped
            self._ledger.left_queue(len(dropped), sum(entry.size for entry in dropped))
        self._parking.look_at(key, lane)

    def failed(self) -> Sequence[Leftover[T]]:
        """Return the items that have failed since the last call."""
        if not self._failed:
            return ()
        gone, self._failed = self._failed, []
        return [entry.leftover for entry in gone]

    def take_spilled(self, most: int) -> list[Waiting[T]]:
        """Take the oldest items beyond a key's bound as its turn; return none if it is not
        exceeded.
        """
        over = self._parking.next(self._lanes)
        if over is None:
            return []
        key, count = over
        entries = self._lanes.take_held(key, min(count, most))
        for entry in entries:
            self._eras.left_lane(entry.era)
        return entries

    def is_going(self, key: Hashable) -> bool:
        """Whether items of a held key are in a batch."""
        lane = self._lanes.lane(key)
        return lane is not None and lane.going

    def let_go(self, key: Hashable, now: float) -> int:
        """Release a key; return its number of held items."""
        lane = self._lanes.lane(key)
        count = 0 if lane is None or not lane.held else lane.length
        self._go(self._lanes.let_go(key), now)
        return count

    def begin_stop(self) -> None:
        """Keep held items until they are returned: they neither fail nor spill any more."""
        self._is_stopping = True
