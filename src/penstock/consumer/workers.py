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
    """A worker, and what it runs, as others see it; a subclass does the work."""

    __slots__ = ("_cut_by", "running", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.running: Message | list[Message] | None = None
        self._cut_by: BaseException | None = None

    def begin(self, failed: Callable[[BaseException], None]) -> None:
        """Start working; `failed` hears of an error that is not a handler's."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                failed(error)

        self.task = asyncio.get_running_loop().create_task(self.work())
        self.task.add_done_callback(ended)

    async def work(self) -> None:
        """Work until there is nothing to do and `Workers.rest` returns false."""
        raise NotImplementedError

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

    def after_cancel(self, cancelled: asyncio.CancelledError) -> Nak:
        """The result of a handler that ended by a cancellation: a failed try.

        Raises the cancellation if it is the worker's own.
        """
        error = self.take_cut()
        if error is None and self.task is not None and self.task.cancelling():
            self.running = None
            raise cancelled
        return Nak(error=error or cancelled)


class Work(Protocol):
    """A kind of work, and who does it."""

    @property
    def is_waiting(self) -> bool:
        """Whether a worker would find something to do."""
        ...

    def make_worker(self) -> Slot:
        """Make another worker."""
        ...


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
        if len(self.slots) < self._most:
            self.is_waking = True
            slot = work.make_worker()
            self.slots.append(slot)
            slot.begin(self._failed)

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
        self.wake()  # for the last batch
        self._is_stopping = True
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()

    def started(self) -> None:
        """A woken or new worker runs."""
        self.is_waking = False

    @property
    def running(self) -> Iterator[Message]:
        """The messages that run now."""
        return (message for slot in self.slots for message in slot.messages())
