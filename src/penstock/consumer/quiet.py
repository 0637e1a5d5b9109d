"""How claims become quiet: nothing of them is queued, and nothing runs any more.

1. Queued messages leave at once, and so do those that back off, are blocked or wait for a manual
   settle at the deadline.
2. Running handlers and errands have until the deadline. Then they are cut, and have `GRACE` seconds
   to end. A handler that ignores its cancellation is deaf: it is reported, and keeps its key.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .._core.clock import wait_until
from .._core.errors import StoppedError
from .._core.say import say

if TYPE_CHECKING:
    from collections.abc import Collection

    from .claim import Claim
    from .commons import Commons
    from .errands import Errands
    from .message import Message
    from .schedule import Schedule
    from .settling import Settler
    from .workers import Workers

GRACE = 0.1
"""Seconds for a cancelled handler to end."""

logger = logging.getLogger("penstock.consumer")

_DEAF = "%s: the handler of %s ignores its cancellation; its key waits until it ends"


class Quiet:
    """Ends what goes on in claims."""

    def __init__(
        self,
        schedule: Schedule,
        settler: Settler,
        errands: Errands,
        workers: Workers,
        commons: Commons,
    ) -> None:
        self._schedule = schedule
        self._settler = settler
        self._errands = errands
        self._workers = workers
        self._clock = commons.clock
        self._counts = commons.counts
        self._signals = commons.signals
        self._name = commons.name

    def drop(self, claims: Collection[Claim]) -> None:
        """Remove what is queued in these claims; it is delivered again to a later claim."""
        self._counts.count("dropped", len(self._schedule.drop(claims)))
        self._signals.work.fire()
        self._signals.room.fire()

    def running(self, claims: Collection[Claim]) -> list[Message]:
        """The messages of these claims that run, have an errand or wait for a manual settle."""
        busy = [*self._workers.running, *self._errands.running, *self._settler.manual]
        return [message for message in busy if message.claim in claims]

    async def wait(
        self, claims: Collection[Claim], until: float, cut: list[Message] | None = None
    ) -> None:
        """Suspend until nothing of these claims runs, cutting what runs at `until`.

        What is cut is added to `cut`.
        """
        if await self._ended(claims, until):
            return
        left = set(self.running(claims))
        if cut is not None:
            cut.extend(left)
        self._settler.drop_manual(left)
        self._errands.cut(left)
        for slot in self._workers.slots:
            if not left.isdisjoint(slot.messages()):
                slot.cut(StoppedError("cut: its partition is given up, or the consumer stops"))
        await self._ended(claims, self._clock.now() + GRACE)
        deaf = self.running(claims)
        self._counts.count("deaf", len(deaf))
        for message in deaf:
            say(logger, logging.ERROR, _DEAF, self._name, message.coordinates)

    async def _ended(self, claims: Collection[Claim], until: float) -> bool:
        while self.running(claims):
            if self._clock.now() >= until:
                return False
            await wait_until(self._clock, until, self._signals.settled)
        return True
