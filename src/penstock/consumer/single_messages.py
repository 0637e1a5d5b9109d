"""Handling one message at a time.

1. A worker takes ready messages until there is none; an acknowledged one is settled at once, here:
   this path runs once per message, so it is written out.
2. A worker that never suspends lets other tasks run after `TURNS_BEFORE_YIELD` messages.
3. Whatever a handler raises is a failed try. `KeyboardInterrupt` and `SystemExit` also end the
   consumer, which raises them after its drain.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from .._core.runtime.loops import running_loop
from .results import Ack, Nak
from .workers import result_of_cut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .commons import Commons
    from .message import Message
    from .schedule import Schedule
    from .settling import Settler
    from .workers import Slot, Workers

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
        self._schedule = schedule
        self._settler = settler
        self._workers = workers
        self._commons = commons
        self._handler = handler

    @property
    def is_waiting(self) -> bool:
        """Whether a message is ready."""
        return bool(self._schedule.ready)

    async def run(self, slot: Slot) -> None:
        """Handle ready messages one after another, and rest when there is none."""
        ready, finish, window = self._schedule.ready, self._schedule.finish, self._schedule.window
        workers, settler, handler = self._workers, self._settler, self._handler
        sleep, counts = self._commons.clock.sleep, self._commons.counts
        room, settled = self._commons.signals.room, self._commons.signals.settled
        task = asyncio.current_task()
        assert task is not None
        is_cancelling, turns = task.cancelling, 0
        while True:
            if not ready:
                if not await workers.rest():
                    return
                continue
            message = ready.popleft()
            if ready and not workers.is_waking:
                workers.wake()
            slot.running = message
            try:
                result = await handler(message)
            except GeneratorExit as error:
                if _is_closed(task):
                    raise
                result = Nak(error=error)
            except BaseException as error:  # it goes to logs and dead letters
                result = Nak(error=error)
                workers.end_on_exit(error)
            slot.running = None
            if is_cancelling():  # by a cut, or by what the handler did
                settler.settle(message, result_of_cut(slot.take_cut(), result))
                await slot.settle_down()
            elif (result is None or type(result) is Ack) and message.claim.settled(message.index):
                counts.acked += 1
                finish(message)
                if settled.waiters:
                    settled.fire()
            else:
                settler.settle(message, result)
            if room.waiters and window.room:
                room.fire()
            turns += 1
            if turns >= TURNS_BEFORE_YIELD:
                turns = 0
                await sleep(0)


def _is_closed(task: asyncio.Task[object]) -> bool:
    """Whether the task's coroutine is closed from outside, at the end of its loop."""
    return running_loop() is None or asyncio.current_task() is not task
