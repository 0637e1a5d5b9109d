"""Keys with more waiting records than `max_per_key`. No clock, no task, no I/O.

1. A lane accepts `max_per_key` waiting records. Later records of the key are *held back*: they keep
   the order of their arrival and count in the window, which limits them.
2. A claim with held-back records is fetched from last, so the other claims get the room first. It
   is still fetched from if room remains, so its other keys continue until the window is full.
3. A key is checked when its records arrive and must wait, and before each fetch while it is
   crowded. There is no check while fewer records wait than one lane accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from .claim import Claim
    from .message import Message


class CrowdedKeys:
    """The crowded keys of each claim."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        """The limit `max_per_key`; with `None` no key is ever crowded."""
        self._keys: dict[Claim, set[Hashable]] = {}

    def __bool__(self) -> bool:
        """Whether any key may be crowded."""
        return bool(self._keys)

    def arrived(self, message: Message) -> None:
        """Check the key of a record that waits in its lane."""
        if self._held_back(message.claim, message.lane_key):
            self._keys.setdefault(message.claim, set()).add(message.lane_key)

    def look(self, claim: Claim, first: int) -> None:
        """Check the keys of waiting records with delivery indices from `first` on.

        Only the last record of each key is checked. Costs nothing while fewer records wait than one
        lane accepts.
        """
        if self.most is None or claim.lanes.waiting <= self.most:
            return
        for _, lane in claim.lanes.lanes():
            last = lane.last
            if last is None or lane.length <= self.most:
                continue
            if last.claim is claim and last.index >= first:
                self.arrived(last)

    def holds_back(self, claim: Claim) -> bool:
        """Return whether a lane crowded by this claim still exceeds its limit."""
        keys = self._keys.get(claim)
        if keys is None:
            return False
        keys.difference_update([key for key in keys if not self._held_back(claim, key)])
        if not keys:
            del self._keys[claim]
        return bool(keys)

    def end(self, claims: Collection[Claim]) -> None:
        """Forget claims."""
        for claim in claims:
            self._keys.pop(claim, None)

    def _held_back(self, claim: Claim, key: Hashable) -> int:
        """Return the number of held-back records of a key."""
        return 0 if self.most is None else max(0, claim.lanes.length(key) - self.most)
