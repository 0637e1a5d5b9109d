"""The members of a group, and the partitions of each. Pure.

1. Each member announces itself every `ANNOUNCE_EVERY` seconds, and says goodbye when it leaves. A
   member that was silent for `SILENT_AFTER` seconds counts as gone.
2. All members compute the same division from the same names: no member has more than its share, and
   a member that joins or leaves moves few other partitions (rendezvous hashing with bounded loads).
3. The division is not exclusive. Two members that know different names may both request a
   partition: the server delivers to one of them, the pinned one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

ANNOUNCE_EVERY = 1.0
SILENT_AFTER = 3.5


class Roster:
    """The known members, including this one."""

    def __init__(self, me: str, partitions: int) -> None:
        self.me = me
        self._partitions = partitions
        self._heard: dict[str, float] = {}

    def hear(self, member: str, now: float) -> bool:
        """Record an announcement; return whether the member is new."""
        if member == self.me:
            return False
        is_new = member not in self._heard
        self._heard[member] = now
        return is_new

    def part(self, member: str) -> bool:
        """Record a goodbye; return whether the member was known."""
        return self._heard.pop(member, None) is not None

    def forget_silent(self, now: float) -> bool:
        """Remove members that were silent for too long; return whether there were any."""
        gone = [each for each, at in self._heard.items() if now - at > SILENT_AFTER]
        for member in gone:
            del self._heard[member]
        return bool(gone)

    @property
    def members(self) -> list[str]:
        """The sorted names of all members."""
        return sorted([self.me, *self._heard])

    def mine(self) -> set[int]:
        """Return the partitions that this member should serve."""
        division = divided(self.members, self._partitions)
        return {partition for partition, member in enumerate(division) if member == self.me}


def divided(members: Collection[str], partitions: int) -> list[str]:
    """Return the member of each partition. The members' counts differ by at most 1."""
    least, more = divmod(partitions, len(members))
    loads = dict.fromkeys(members, 0)
    division: list[str] = []
    for partition in range(partitions):
        ranked = sorted(loads, key=lambda name: _score(name, partition))
        chosen = next(name for name in ranked if loads[name] < least + (more > 0))
        loads[chosen] += 1
        more -= loads[chosen] > least
        division.append(chosen)
    return division


def _score(name: str, partition: int) -> bytes:
    return blake2b(f"{partition}:{name}".encode(), digest_size=8).digest()
