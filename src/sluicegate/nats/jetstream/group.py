"""Members of a group that announce themselves to each other, on a subject of their own.

Nothing is stored. A member that receives the announcement of a new one answers at once, so that
both know all members. A failed announcement is repeated with the next one, and other messages are
ignored.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from ..._core.clock import Signal, wait_until
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from .members import ANNOUNCE_EVERY, Roster
from .moves import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.clock import Clock
    from .channel import Channel
    from .options import ReadOptions

_NOT_OURS = "%s: ignored a message that is not an announcement of a member: %r"
_NOT_SAID = "%s: %r could not be announced (%s)"

FIRST = 0.2
"""Seconds for the other members to answer a new one."""


class MemberGroup:
    """This process as a member of a group."""

    def __init__(self, options: ReadOptions, channel: Channel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._subject = f"_SLUICEGATE.members.{options.stream}.{options.durable}"
        self._roster = Roster(options.member, options.count)
        self._changed = Signal()
        self._has_changed = False
        self._is_leaving = False

    async def run(self, serve: Callable[[set[int]], None]) -> None:
        """Serve this member's partitions as members join and leave."""
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
        try:
            said = json.loads(message.data)
            member, state = str(said["member"]), said["is"]
        except (ValueError, KeyError, TypeError):
            log_safely(logger, logging.WARNING, _NOT_OURS, self._subject, message.data[:80])
            return
        if state == "gone":
            news = self._roster.part(member)
        else:
            news = self._roster.hear(member, self._clock.now())
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
