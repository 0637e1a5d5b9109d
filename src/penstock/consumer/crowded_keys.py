"""Keys with more waiting records than `max_per_key`. No clock, no task, no I/O.

1. A lane takes `max_per_key` waiting records. Later ones of the key are *held back*: they keep the
   order of their arrival and count in the window, which bounds them.
2. A claim with held-back records is fetched from after the others, so these get the room first. It
   is still fetched from if they leave some: other keys of it go on until the window is full.
3. A key is looked at when records of it have arrived and have to wait, and before each fetch while
   it is crowded. Nothing is done while fewer records wait than a lane takes.
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
        """`max_per_key`; `None`: no key is ever crowded."""
        self._keys: dict[Claim, set[Hashable]] = {}

    def __bool__(self) -> bool:
        """Whether any key may be crowded."""
        return bool(self._keys)

    def arrived(self, message: Message) -> None:
        """Note a record that waits in its lane."""
        if self._held_back(message.claim, message.lane_key):
            self._keys.setdefault(message.claim, set()).add(message.lane_key)

    def look(self, claim: Claim, first: int) -> None:
        """Note the records that wait in their lanes, of the delivery indices from `first` on.

        Of each key the last one is enough. Costs nothing while fewer wait than one lane takes.
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
        """Whether a lane that the claim has crowded still has more than it takes."""
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
        """The held-back records of a key."""
        return 0 if self.most is None else max(0, claim.lanes.length(key) - self.most)
