"""Work that handles one message at a time.

1. A worker takes ready messages until there are none. An acknowledged message is settled inline,
   since this path runs once per message.
2. A worker that never suspends yields to other tasks after `TURNS_BEFORE_YIELD` messages, or when a
   message has started a task.
3. A message whose record could not be decoded is settled without the handler.
4. Any exception of a handler is a failed try. `KeyboardInterrupt` and `SystemExit` also end the
   consumer, which raises them after its drain.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from .results import Ack, Nak, of_raised
from .stepping import refused
from .workers import Handling, Slot, is_closed, result_of_cut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .commons import Commons
    from .message import Message
    from .schedule import Schedule
    from .settling import Settler
    from .workers import Workers

Handler: TypeAlias = "Callable[[Message], Awaitable[object]]"

TURNS_BEFORE_YIELD = 128


class SingleMessages(Handling):
    """Work that handles one message at a time."""

    def __init__(
        self,
        schedule: Schedule,
        settler: Settler,
        workers: Workers,
        commons: Commons,
        handler: Handler,
    ) -> None:
        super().__init__(schedule)
        self.settler = settler
        self.workers = workers
        self.commons = commons
        self.handler = handler

    @property
    def is_waiting(self) -> bool:
        """Whether a message is ready."""
        return bool(self.schedule.ready)

    def make_worker(self) -> Slot:
        """Create a worker of single messages."""
        return MessageWorker(self)


class MessageWorker(Slot):
    """A worker that handles ready messages one after another."""

    def __init__(self, shared: SingleMessages) -> None:
        super().__init__()
        self._shared = shared

    async def work(self) -> None:
        """Handle ready messages; rest when there are none."""
        shared = self._shared
        schedule, workers, settler = shared.schedule, shared.workers, shared.settler
        ready, window, acknowledge = schedule.ready, schedule.window, schedule.acknowledge
        handler, sleep = shared.handler, shared.commons.clock.sleep
        room, settled = shared.commons.signals.room, shared.commons.signals.settled
        refill = window.refill_messages
        task = asyncio.current_task()
        assert task is not None
        is_cancelling, turns = task.cancelling, 0
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
                end = refused(message) if schedule.has_undecodable else None
                result = end or await handler(message)
            except GeneratorExit as error:
                if is_closed(task):
                    raise
                result = Nak(error=error)
            except BaseException as error:  # it goes to logs and dead letters
                result = Nak(error=of_raised(error))
                workers.end_on_exit(error)
            self.running, self.ended = None, message
            if is_cancelling():  # by a cut, or by the handler itself
                settler.settle(message, result_of_cut(self.take_cut(), result))
                await self.settle_down()
            elif (result is None or type(result) is Ack) and acknowledge(message):
                if settled.waiters:
                    settled.fire()
            else:
                settler.settle(message, result)
                if workers.yields_soon:
                    turns = TURNS_BEFORE_YIELD
            if room.waiters and window.messages < refill and window.has_resumed:
                room.fire()
            turns += 1
            if turns >= TURNS_BEFORE_YIELD:
                turns = 0
                workers.pausing()
                await sleep(0)
                workers.started()
