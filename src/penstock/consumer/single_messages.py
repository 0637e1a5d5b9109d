"""Handling one message at a time.

1. A worker takes ready messages until there is none; an acknowledged one is settled at once, here:
   this path runs once per message, so it is written out.
2. A worker that never suspends lets other tasks run after `TURNS_BEFORE_YIELD` messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from .results import Ack, Nak
from .workers import Slot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .commons import Commons
    from .message import Message
    from .schedule import Schedule
    from .settling import Settler
    from .workers import Workers

Handler: TypeAlias = "Callable[[Message], Awaitable[object]]"

TURNS_BEFORE_YIELD = 128


class SingleMessages:
    """Handles one message at a time."""

    def __init__(
        self,
        schedule: Schedule,
        settler: Settler,
        workers: Workers,
        commons: Commons,
        handler: Handler,
    ) -> None:
        self.schedule = schedule
        self.settler = settler
        self.workers = workers
        self.commons = commons
        self.handler = handler

    @property
    def is_waiting(self) -> bool:
        """Whether a message is ready."""
        return bool(self.schedule.ready)

    def make_worker(self) -> Slot:
        """Make a worker of single messages."""
        return MessageWorker(self)


class MessageWorker(Slot):
    """Handles ready messages one after another."""

    def __init__(self, shared: SingleMessages) -> None:
        super().__init__()
        self._shared = shared

    async def work(self) -> None:
        """Handle ready messages; rest when there is none."""
        shared = self._shared
        schedule, workers, settler = shared.schedule, shared.workers, shared.settler
        ready, window, acknowledge = schedule.ready, schedule.window, schedule.acknowledge
        handler, sleep = shared.handler, shared.commons.clock.sleep
        room, settled = shared.commons.signals.room, shared.commons.signals.settled
        refill = window.refill_messages
        turns = 0
        workers.started()
        while True:
            if not ready:
                if not await workers.rest():
                    return
                continue
            message = ready.popleft()
            if ready and not workers.is_waking:
                workers.wake()
            self.running = message
            try:
                result = await handler(message)
            except asyncio.CancelledError as error:
                result = self.after_cancel(error)
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as error:  # a failed try; it goes to logs and dead letters
                result = Nak(error=error)
            self.running = None
            if (result is None or type(result) is Ack) and acknowledge(message):
                if settled.waiters:
                    settled.fire()
            else:
                settler.settle(message, result)
            if room.waiters and window.messages < refill and window.has_resumed:
                room.fire()
            turns += 1
            if turns >= TURNS_BEFORE_YIELD:
                turns = 0
                await sleep(0)
