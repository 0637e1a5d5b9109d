"""Resident workers that run the handler, and are woken one at a time.

1. A worker takes ready messages one after another, and rests when there is none. Workers are
   started when they are needed, up to `concurrency`.
2. At most one wake-up is outstanding: the worker that wakes takes a message, and then wakes the
   next worker if there is more. So a busy stretch does not wake all workers for each message.
3. A handler is cut by `Slot.cut`: its worker is cancelled, and takes the cancellation back. A
   handler that ignores it keeps its worker and its key until it ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from .results import Nak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .message import Message


class Slot:
    """A worker, and what it runs, as the sweeper samples it."""

    __slots__ = ("_cut_by", "running", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.running: Message | list[Message] | None = None
        self._cut_by: BaseException | None = None

    def begin(self, task: asyncio.Task[None]) -> None:
        """Belong to this worker."""
        self.task = task

    def cut(self, error: BaseException) -> None:
        """Cancel the running handler, whose messages fail with `error`; once per run."""
        if self._cut_by is None and self.task is not None:
            self._cut_by = error
            self.task.cancel()

    @property
    def is_cut(self) -> bool:
        """Whether the running handler has been cancelled, and has not ended yet."""
        return self._cut_by is not None

    def take_cut(self) -> BaseException | None:
        """The error of a cut, with its cancellation taken back; `None` without one."""
        error, self._cut_by = self._cut_by, None
        if error is not None and self.task is not None:
            self.task.uncancel()
        return error

    def messages(self) -> list[Message]:
        """What runs in this worker."""
        running = self.running
        return [] if running is None else running if isinstance(running, list) else [running]


class Work(Protocol):
    """What a worker does between two rests."""

    @property
    def is_waiting(self) -> bool:
        """Whether a worker would find something to do."""
        ...

    async def run(self, slot: Slot) -> None:
        """Work until there is nothing to do and `Workers.rest` returns false."""


class Workers:
    """The workers of a consumer: when they start, rest and wake."""

    def __init__(self, most: int, failed: Callable[[BaseException], None]) -> None:
        self._most = most
        self._failed = failed
        self._work: Work | None = None
        self.slots: list[Slot] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self.is_waking = False
        """Whether a worker has been woken, or started, and has not run yet."""
        self._is_stopping = False

    def begin(self, work: Work) -> None:
        """Start doing this work."""
        self._work = work
        self.wake()

    def wake(self) -> None:
        """Wake a resting worker, or start one, unless one is waking already."""
        work = self._work
        if self.is_waking or work is None or not work.is_waiting:
            return
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                self.is_waking = True
                waiter.set_result(None)
                return
        if len(self.slots) < self._most and not self._is_stopping:
            self.is_waking = True
            slot = Slot()
            self.slots.append(slot)
            task = asyncio.get_running_loop().create_task(self._run(work, slot))
            task.add_done_callback(self._ended)
            slot.begin(task)

    async def rest(self) -> bool:
        """Suspend a worker until there may be work; return whether to go on."""
        if self._is_stopping:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter
        self.is_waking = False
        return True

    def stop(self) -> None:
        """Let each worker end once it finds nothing to do."""
        self._is_stopping = True
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()

    @property
    def running(self) -> Iterator[Message]:
        """The messages that run now."""
        return (message for slot in self.slots for message in slot.messages())

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)  # an error of ours: handlers' errors are results

    async def _run(self, work: Work, slot: Slot) -> None:
        self.is_waking = False
        await work.run(slot)


def after_cancel(slot: Slot, cancelled: asyncio.CancelledError) -> Nak:
    """The result of a handler that ended by a cancellation: a failed try.

    Raises the cancellation if it is the worker's own.
    """
    error = slot.take_cut()
    if error is None and slot.task is not None and slot.task.cancelling():
        slot.running = None
        raise cancelled
    return Nak(error=error or cancelled)
