"""Work on messages in batches; `concurrency` is the number of batches that run at once.

Each search for work lets the batch former take the ready messages. The engine's timekeeper searches
when a batch becomes due.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from ..results import Nak, of_raised
from ..stepping import Sifted, sift
from ..workers import Handling, Slot, is_closed, result_of_cut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..commons import Commons
    from ..message import Message
    from ..schedule import Schedule
    from ..stepping import Step
    from ..workers import Workers
    from .batch_settling import BatchSettler
    from .former import BatchFormer

BatchFunction: TypeAlias = "Callable[[list[Message]], Awaitable[object]]"


class BatchMessages(Handling):
    """Work that handles messages in batches."""

    def __init__(
        self,
        schedule: Schedule,
        former: BatchFormer,
        settler: BatchSettler,
        workers: Workers,
        commons: Commons,
        *,
        handler: BatchFunction,
        steps: Sequence[Step],
    ) -> None:
        super().__init__(schedule)
        self.settler = settler
        self.workers = workers
        self.commons = commons
        self.handler = handler
        self.steps = steps
        self._window = schedule.window
        self._former = former
        self._running = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a batch is due, after the ready messages have joined batches."""
        now = self.commons.clock.now()
        if self._former.take_in(now):
            self.commons.signals.work.fire()
        return self._former.is_due(now, is_idle=not self._running)

    def begin(self) -> list[Message] | None:
        """Take and return the batch that is due, if any, to be handled now.

        The timekeeper waits for the first batch only, so it is notified of the next one.
        """
        batch = None
        if self.is_waiting:
            batch = self._former.take(self.commons.clock.now(), is_idle=not self._running)
            self._running += batch is not None
        if self._former.next_due is not None:
            self.commons.signals.work.fire()
        return batch

    def end(self) -> None:
        """Record that a batch is settled, and notify the waiting tasks."""
        self._running -= 1
        self.commons.counts.count("batches")
        signals = self.commons.signals
        signals.settled.fire()
        if signals.room.waiters and self._window.has_resumed:
            signals.room.fire()

    def make_worker(self) -> Slot:
        """Create a worker of batches."""
        return BatchWorker(self)


class BatchWorker(Slot):
    """A worker that handles batches one after another."""

    def __init__(self, shared: BatchMessages) -> None:
        super().__init__()
        self._shared = shared

    async def work(self) -> None:
        """Handle batches that are due; rest when there are none."""
        shared = self._shared
        workers, sleep = shared.workers, shared.commons.clock.sleep
        task = asyncio.current_task()
        assert task is not None
        workers.started()
        while True:
            batch = shared.begin()
            if batch is None:
                if not await workers.rest():
                    return
                continue
            workers.wake()
            try:
                await self._handle(batch, task)
            finally:
                shared.end()
            await sleep(0)  # in case the handler does not suspend

    async def _handle(self, batch: list[Message], task: asyncio.Task[object]) -> None:
        shared = self._shared
        began = shared.commons.clock.now()
        sifted, returned = Sifted(list(batch), {}), None
        error: BaseException | None = None
        self.running = batch
        try:
            if shared.steps or shared.schedule.has_undecodable:
                sifted = await sift(shared.steps, batch)
            if sifted.shown:
                returned = await shared.handler(list(sifted.shown))
        except GeneratorExit as raised:
            if is_closed(task):
                raise
            error = raised
        except BaseException as raised:  # a failed try; it goes to logs and dead letters
            error = of_raised(raised)
            shared.workers.end_on_exit(raised)
        self.running, self.ended = None, batch
        is_cancelled = task.cancelling() > 0  # by a cut, or by the handler itself
        if is_cancelled:
            error = error_of_cut(self.take_cut(), returned, error)
        if error is None or not sifted.shown:
            shared.settler.returned(batch, sifted, returned, began)
        else:
            shared.settler.raised(batch, sifted, error)
        if is_cancelled:
            await self.settle_down()


def error_of_cut(
    cut_by: BaseException | None, returned: object, error: BaseException | None
) -> BaseException | None:
    """Return the error of a batch whose worker was cancelled; like `result_of_cut` for one
    message.
    """
    result = result_of_cut(cut_by, None if error is None else Nak(error=error))
    if error is None and returned is not None:
        return None
    return result.error if isinstance(result, Nak) else None
