"""The members of a group, and which partitions each of them serves. Pure.

1. Each member announces itself every `ANNOUNCE_EVERY` seconds, and says goodbye when it leaves. One
   that was not heard for `SILENT_AFTER` seconds counts as gone.
2. All members compute the same division from the same names: no member has more than its share, and a
   member that joins or leaves moves few other partitions (rendezvous hashing with bounded loads).
3. A division is a wish, not a right. Two members that know different names may both ask for a
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
    """The members that were heard of, with this one."""

    def __init__(self, me: str, partitions: int) -> None:
        self.me = me
        self._partitions = partitions
        self._heard: dict[str, float] = {}

    def hear(self, member: str, now: float) -> bool:
        """Note an announcement; return whether the member is new."""
        if member == self.me:
            return False
        is_new = member not in self._heard
        self._heard[member] = now
        return is_new

    def part(self, member: str) -> bool:
        """Note a goodbye; return whether the member was there."""
        return self._heard.pop(member, None) is not None

    def forget_silent(self, now: float) -> bool:
        """Drop members that were not heard of for too long; return whether there were any."""
        gone = [each for each, at in self._heard.items() if now - at > SILENT_AFTER]
        for member in gone:
            del self._heard[member]
        return bool(gone)

    @property
    def members(self) -> list[str]:
        """All of them, sorted."""
        return sorted([self.me, *self._heard])

    def mine(self) -> set[int]:
        """The partitions that this member is to serve."""
        division = divided(self.members, self._partitions)
        return {partition for partition, member in enumerate(division) if member == self.me}


def divided(members: Collection[str], partitions: int) -> list[str]:
    """The member of each partition. The numbers of partitions of two members differ by at most 1."""
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
