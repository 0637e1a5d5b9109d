"""Members of a group, which announce themselves to each other on a subject of their own, and the
partitions of each.

1. Nothing is stored. Each member announces itself every `ANNOUNCE_EVERY` seconds, and says goodbye
   when it leaves. A member that was silent for `SILENT_AFTER` seconds counts as gone. A member that
   receives the announcement of a new one answers immediately, so that both know all members.
2. All members compute the same division from the same names: no member has more than its share, and
   a member that joins or leaves moves few other partitions (rendezvous hashing with bounded loads).
3. The division is not exclusive. Two members that know different names may both request a
   partition: the server delivers to one of them, the pinned one.
"""

from __future__ import annotations

import json
import logging
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from .moves import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .channel import Channel
    from .options import ReadOptions

_NOT_OURS = "%s: ignored a message that is not an announcement of a member: %r"
_NOT_SAID = "%s: %r could not be announced (%s)"

FIRST = 0.2
"""Timeout in seconds for the other members to respond to a new one."""
ANNOUNCE_EVERY = 1.0
"""Seconds between two announcements of a member."""
SILENT_AFTER = 3.5
"""Seconds without an announcement after which a member counts as gone."""


class MemberGroup:
    """This process as a member of a group."""

    def __init__(self, options: ReadOptions, channel: Channel) -> None:
        self._channel = channel
        self._subject = f"_SLUICEGATE.members.{options.stream}.{options.durable}"
        self._roster = Roster(options.member, options.count)
        self._changed = Signal()
        self._has_changed = False
        self._is_leaving = False

    async def run(self, serve: Callable[[set[int]], None]) -> None:
        """Serve this member's partitions as members join and leave."""
        await self._channel.subscribe(self._subject, self._heard)
        await self._say("here")
        await LOOP_CLOCK.sleep(FIRST)
        while True:
            self._has_changed = False
            self._roster.forget_silent(LOOP_CLOCK.now())
            serve(self._roster.mine())
            await self._say("here")
            if not self._has_changed:
                await wait_until(LOOP_CLOCK, LOOP_CLOCK.now() + ANNOUNCE_EVERY, self._changed)

    async def _heard(self, message: Any) -> None:
        try:
            said = json.loads(message.data)
            member, state = str(said["member"]), said["is"]
        except (ValueError, KeyError, TypeError):
            log_safely(logger, logging.WARNING, _NOT_OURS, self._subject, message.data[:80])
            return
        if state == "gone":
            news = self._roster.part(member)
        else:
            news = self._roster.hear(member, LOOP_CLOCK.now())
            if news:
                await self._say("here")
        if news:
            self._has_changed = True
            self._changed.fire()

    async def leave(self) -> None:
        """Announce that this member leaves."""
        self._is_leaving = True
        await self._say("gone", always=True)

    async def _say(self, what: str, *, always: bool = False) -> None:
        if self._is_leaving and not always:
            return
        said = {"member": self._roster.me, "is": what}
        try:
            await self._channel.publish(self._subject, json.dumps(said).encode())
        except Exception as error:  # of the connection; the next announcement is soon enough
            end_if_cut(error)
            log_safely(logger, logging.DEBUG, _NOT_SAID, self._subject, what, for_log(error))


class Roster:
    """The known members, including this one."""

    def __init__(self, me: str, partitions: int) -> None:
        self.me = me
        self._partitions = partitions
        self._heard: dict[str, float] = {}
        self._divided: list[str] = []
        """The members of the last division; the next one is made for others, since to divide 5,000
        partitions among 100 members takes half a second.
        """
        self._mine: set[int] = set()

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

    def forget_silent(self, now: float) -> None:
        """Remove members that were silent for too long."""
        self._heard = {each: at for each, at in self._heard.items() if now - at <= SILENT_AFTER}

    @property
    def members(self) -> list[str]:
        """The sorted names of all members."""
        return sorted([self.me, *self._heard])

    def mine(self) -> set[int]:
        """Return the partitions that this member should serve."""
        if (members := self.members) != self._divided:
            division = divide(members, self._partitions)
            self._divided = members
            self._mine = {number for number, member in enumerate(division) if member == self.me}
        return self._mine


def divide(members: Collection[str], partitions: int) -> list[str]:
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
