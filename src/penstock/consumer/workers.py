"""Resident workers that run the handler, and are woken one at a time.

1. A worker takes ready messages one after another, and rests when there is none. Workers are
   started when they are needed, up to `concurrency`.
2. At most one wake-up is outstanding: the worker that wakes takes a message, and then wakes the
   next worker if there is more. So a busy stretch does not wake all workers for each message.
3. A handler is cut by `Slot.cut`: its worker is cancelled. A handler that ignores it is *deaf*, and
   keeps its worker and its key until it ends.
4. A cancellation ends a handler, never its worker, whoever asked for it: the cut, the handler
   itself, a task group in it. Between two turns a worker has no cancellation left, neither counted
   (`asyncio.timeout` and task groups of the next handler would take it for theirs) nor undelivered
   (it would hit the next handler).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from .._core.clock import LOOP_CLOCK
from .._core.runtime.exits import Exit
from .._core.runtime.loops import running_loop
from .results import Nak

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from .claim import Claim
    from .message import Message
    from .schedule import Schedule


class Slot:
    """A worker, and what it runs, as others see it; a subclass does the work."""

    __slots__ = ("_cut_by", "is_deaf", "running", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.running: Message | list[Message] | None = None
        self.is_deaf = False
        """Whether the running handler has been found to ignore its cut."""
        self._cut_by: BaseException | None = None

    def begin(self, ended: Callable[[Slot, BaseException | None], None]) -> None:
        """Start working; `ended` hears of the end, and of an error that is not a handler's."""

        def done(task: asyncio.Task[None]) -> None:
            ended(self, None if task.cancelled() else task.exception())

        self.task = asyncio.get_running_loop().create_task(self.work())
        self.task.add_done_callback(done)

    async def work(self) -> None:
        """Work until there is nothing to do and `Workers.rest` returns false."""
        raise NotImplementedError

    def cut(self, error: BaseException) -> None:
        """Cancel the running handler, whose messages fail with `error`; once per turn."""
        if self._cut_by is None and self.running is not None and self.task is not None:
            self._cut_by = error
            self.task.cancel()

    @property
    def is_cut(self) -> bool:
        """Whether the running handler has been cancelled, and has not ended yet."""
        return self._cut_by is not None

    def turn_deaf(self) -> bool:
        """Note that the running handler ignores its cut; return whether that is news."""
        is_news = self.is_cut and not self.is_deaf
        self.is_deaf = self.is_cut
        return is_news

    def take_cut(self) -> BaseException | None:
        """Take all cancellations back at the end of a turn; return the error of its cut, if any."""
        error, self._cut_by, self.is_deaf = self._cut_by, None, False
        if self.task is not None:
            _take_back_all(self.task)
        return error

    async def settle_down(self) -> None:
        """Let a cancellation pass that was taken back before it was delivered.

        Python forgets it only from 3.13 on. Suspends once; nothing may be running.
        """
        try:
            await LOOP_CLOCK.sleep(0)
        except asyncio.CancelledError:
            if self.task is not None:
                _take_back_all(self.task)

    def messages(self) -> list[Message]:
        """What runs in this worker."""
        running = self.running
        return [] if running is None else running if isinstance(running, list) else [running]


def _take_back_all(task: asyncio.Task[None]) -> None:
    while task.cancelling():
        task.uncancel()


class Work(Protocol):
    """A kind of work, and who does it."""

    @property
    def is_waiting(self) -> bool:
        """Whether a worker would find something to do."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether nothing goes on unless an operator unblocks a message."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why what was passed on cannot end now, in words for operators; `None`: it can."""
        ...

    def make_worker(self) -> Slot:
        """Make another worker."""
        ...

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Take back what was passed on of these claims and has not begun."""

    def hurry(self, until: float) -> None:
        """End what was passed on, until that time at the latest: the consumer drains."""


class Handling:
    """Work that ends in the worker that began it: nothing is passed on."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    @property
    def is_stuck(self) -> bool:
        """Whether nothing goes on unless an operator unblocks a message."""
        return self.schedule.is_stuck

    @property
    def trouble(self) -> str | None:
        """Nothing was passed on."""
        return None

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Nothing was passed on."""

    def hurry(self, until: float) -> None:
        """Nothing was passed on."""


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
            slot.begin(self._ended)

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

    @property
    def is_stuck(self) -> bool:
        """Whether nothing goes on unless an operator unblocks a message."""
        return self._work is None or self._work.is_stuck

    @property
    def trouble(self) -> str | None:
        """Why what was passed on cannot end now; `None`: it can, or nothing was."""
        return None if self._work is None else self._work.trouble

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Take back what the work has passed on of these claims and has not begun."""
        if self._work is not None:
            self._work.withdraw(claims)

    def hurry(self, until: float) -> None:
        """Have what the work has passed on end, until that time at the latest."""
        if self._work is not None:
            self._work.hurry(until)

    def end_on_exit(self, error: BaseException) -> None:
        """End the consumer if a handler raised an exit of the program."""
        if isinstance(error, Exit):
            self._failed(error)

    def started(self) -> None:
        """A woken or new worker runs."""
        self.is_waking = False

    @property
    def running(self) -> Iterator[Message]:
        """The messages that run now."""
        return (message for slot in self.slots for message in slot.messages())

    def _ended(self, slot: Slot, error: BaseException | None) -> None:
        self.slots.remove(slot)
        if error is not None:
            self._failed(error)
        self.is_waking = False  # it may have been the waking one, and cancelled
        self.wake()


def result_of_cut(cut_by: BaseException | None, result: object) -> object:
    """The result of a turn in which its worker was cancelled, by `cut_by` or for another reason.

    A handler that was cut has failed, unless it answers an explicit result: most of those that
    return `None` then have swallowed the cancellation, and nothing says that the message is
    handled. The cut is the error, unless the handler raised one of its own.
    """
    if cut_by is None:
        return result
    if result is None or (isinstance(result, Nak) and _is_cancellation(result.error)):
        return Nak(error=cut_by)
    return result


def is_closed(task: asyncio.Task[object]) -> bool:
    """Whether the task's coroutine is closed from outside, at the end of its loop."""
    return running_loop() is None or asyncio.current_task() is not task


def _is_cancellation(error: BaseException | None) -> bool:
    return isinstance(error, asyncio.CancelledError)
