"""Handling messages in batches; `concurrency` is the number of batches that run at once.

Whoever looks for work lets the former take what is ready. The engine's timekeeper looks when a
batch becomes due.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from ..workers import Slot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..commons import Commons
    from ..message import Message
    from ..schedule import Schedule
    from ..workers import Workers
    from .batch_settling import BatchSettler
    from .former import BatchFormer

BatchFunction: TypeAlias = "Callable[[list[Message]], Awaitable[object]]"


class BatchMessages:
    """Handles messages in batches."""

    def __init__(
        self,
        schedule: Schedule,
        former: BatchFormer,
        settler: BatchSettler,
        workers: Workers,
        commons: Commons,
        *,
        handler: BatchFunction,
    ) -> None:
        self.settler = settler
        self.workers = workers
        self.commons = commons
        self.handler = handler
        self._window = schedule.window
        self._former = former
        self._running = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a batch is due, after taking in what is ready."""
        now = self.commons.clock.now()
        if self._former.take_in(now):
            self.commons.signals.work.fire()
        return self._former.is_due(now, is_idle=not self._running)

    def begin(self) -> list[Message] | None:
        """Take the batch that is due, if there is one, to be handled now."""
        if not self.is_waiting:
            return None
        batch = self._former.take(self.commons.clock.now(), is_idle=not self._running)
        self._running += batch is not None
        return batch

    def end(self) -> None:
        """Note that a batch is settled, and tell those who wait for that."""
        self._running -= 1
        self.commons.counts.count("batches")
        signals = self.commons.signals
        signals.settled.fire()
        if signals.room.waiters and self._window.has_resumed:
            signals.room.fire()

    def make_worker(self) -> Slot:
        """Make a worker of batches."""
        return BatchWorker(self)


class BatchWorker(Slot):
    """Handles batches one after another."""

    def __init__(self, shared: BatchMessages) -> None:
        super().__init__()
        self._shared = shared

    async def work(self) -> None:
        """Handle batches that are due; rest when there is none."""
        shared = self._shared
        workers, sleep = shared.workers, shared.commons.clock.sleep
        workers.started()
        while True:
            batch = shared.begin()
            if batch is None:
                if not await workers.rest():
                    return
                continue
            workers.wake()
            try:
                await self._handle(batch)
            finally:
                shared.end()
            await sleep(0)  # a handler may not suspend

    async def _handle(self, batch: list[Message]) -> None:
        shared = self._shared
        began = shared.commons.clock.now()
        self.running = batch
        try:
            returned = await shared.handler(list(batch))
        except asyncio.CancelledError as cancelled:
            error: BaseException | None = self.after_cancel(cancelled).error or cancelled
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as raised:  # a failed try; it goes to logs and dead letters
            error = raised
        else:
            error = None
        self.running = None
        if error is None:
            shared.settler.returned(batch, returned, began)
        else:
            shared.settler.raised(batch, error)
