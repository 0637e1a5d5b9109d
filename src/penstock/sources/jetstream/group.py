"""Members of a group that tell each other of themselves, over a subject of their own.

Nothing is stored. A member that hears of a new one answers at once, so that both know all.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..._core.clock import Signal, wait_until
from .members import ANNOUNCE_EVERY, Roster

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.clock import Clock
    from .channel import Channel
    from .options import ReadOptions

FIRST = 0.2
"""Seconds in which the others answer a new member."""


class MemberGroup:
    """This member of a group."""

    def __init__(self, options: ReadOptions, channel: Channel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._subject = f"_PENSTOCK.members.{options.stream}.{options.durable}"
        self._roster = Roster(options.member, options.count)
        self._changed = Signal()
        self._has_changed = False
        self._is_leaving = False

    async def run(self, serve: Callable[[set[int]], None]) -> None:
        """Serve this member's partitions as members come and go."""
        await self._channel.subscribe(self._subject, self._heard)
        await self._say("here")
        await self._clock.sleep(FIRST)
        while True:
            self._has_changed = False
            self._roster.forget_silent(self._clock.now())
            serve(self._roster.mine())
            await self._say("here")
            if not self._has_changed:
                await wait_until(self._clock, self._clock.now() + ANNOUNCE_EVERY, self._changed)

    async def _heard(self, message: Any) -> None:
        said: dict[str, str] = json.loads(message.data)
        member = said["member"]
        if said["is"] == "gone":
            news = self._roster.part(member)
        else:
            news = self._roster.hear(member, self._clock.now())
            if news:
                await self._say("here")
        if news:
            self._has_changed = True
            self._changed.fire()

    async def leave(self) -> None:
        """Tell the others that this member leaves."""
        self._is_leaving = True
        await self._say("gone", always=True)

    async def _say(self, what: str, *, always: bool = False) -> None:
        if self._channel.is_connected and (always or not self._is_leaving):
            said = {"member": self._roster.me, "is": what}
            await self._channel.publish(self._subject, json.dumps(said).encode())
