"""Resident workers that run the handler and are woken one at a time.

1. A worker takes ready messages one after another, and rests when there are none. Workers are
   started on demand, up to `concurrency`.
2. At most one wake-up is outstanding: the woken worker takes a message, and then wakes the next
   worker if more are ready. This avoids a thundering herd.
3. `Slot.cut` cuts a handler by cancelling its worker. A handler that ignores the cancellation is
   *deaf*, and keeps its worker and its key until it ends.
4. A cancellation ends a handler, never its worker, regardless of its origin: a cut, the handler
   itself, or a task group inside it. Between two turns a worker has no remaining cancellation,
   neither counted (`asyncio.timeout` and task groups of the next handler would mistake it for their
   own) nor undelivered (it would cancel the next handler).
5. An acknowledged message is settled inline, since this path runs once per message. A worker that
   never suspends yields to other tasks after `TURNS_BEFORE_YIELD` messages, or when a message has
   started a task.
6. A message whose record could not be decoded is settled without the handler.
7. A handler that lacks something, such as a schema, is called again when it is loaded. Any other
   exception of a handler is a failed attempt. `KeyboardInterrupt` and `SystemExit` also end the
   consumer, which raises them after its drain.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from ..._core.clock import LOOP_CLOCK
from ..._core.loading import NotLoaded, called_again
from ..._core.runtime.loops import Exit, running_loop
from .results import Ack, Nak, of_raised
from .steps import refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

    from ..._core.clock import Signal
    from ..lanes.message import Message
    from ..lanes.schedule import Schedule
    from ..progress.claim import Claim
    from ..run import Run
    from .settling import Settler

Handler: TypeAlias = "Callable[[Message], Awaitable[object]]"
TURNS_BEFORE_YIELD = 128


class Slot:
    """A worker and its running messages; subclasses do the work."""

    __slots__ = ("_cut_by", "ended", "is_deaf", "running", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.running: Message | list[Message] | None = None
        self.ended: Message | list[Message] | None = None
        """The last turn that has ended since the sweeper's last sample."""
        self.is_deaf = False
        """Whether the running handler was found to ignore its cancellation."""
        self._cut_by: BaseException | None = None

    def begin(self, ended: Callable[[Slot, BaseException | None], None]) -> None:
        """Start working; `ended` is called at the end, with an error if it is not a handler's."""

        def done(task: asyncio.Task[None]) -> None:
            ended(self, None if task.cancelled() else task.exception())

        self.task = asyncio.get_running_loop().create_task(self.work())
        self.task.add_done_callback(done)

    async def work(self) -> None:
        """Work until there is nothing to do and `Workers.rest` returns false."""
        raise NotImplementedError

    def cut(self, error: BaseException) -> None:
        """Cancel the running handler, whose messages fail with `error`; at most once per turn."""
        if self._cut_by is None and self.running is not None and self.task is not None:
            self._cut_by = error
            self.task.cancel()

    @property
    def is_cut(self) -> bool:
        """Whether the running handler has been cancelled and has not ended yet."""
        return self._cut_by is not None

    def forget_ended(self) -> None:
        """Release the last turn, with its messages."""
        self.ended = None

    def turn_deaf(self) -> bool:
        """Record that the running handler ignores its cancellation; return whether this is new."""
        is_news = self.is_cut and not self.is_deaf
        self.is_deaf = self.is_cut
        return is_news

    def take_cut(self) -> BaseException | None:
        """Revoke all cancellations at the end of a turn; return the error of the cut, if any."""
        error, self._cut_by, self.is_deaf = self._cut_by, None, False
        if self.task is not None:
            _take_back_all(self.task)
        return error

    async def settle_down(self) -> None:
        """Absorb a cancellation that was revoked before it was delivered.

        Python itself discards it only from 3.13 on. Suspends once; no handler may be running.
        """
        try:
            await LOOP_CLOCK.sleep(0)
        except asyncio.CancelledError:
            if self.task is not None:
                _take_back_all(self.task)

    def messages(self) -> list[Message]:
        """Return the messages that run in this worker."""
        running = self.running
        return [] if running is None else running if isinstance(running, list) else [running]


def _take_back_all(task: asyncio.Task[None]) -> None:
    while task.cancelling():
        task.uncancel()


class Work(Protocol):
    """A kind of work, and its workers."""

    @property
    def is_waiting(self) -> bool:
        """Whether a worker would find work."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether nothing continues unless an operator unblocks a message."""
        ...

    def make_worker(self) -> Slot:
        """Create another worker."""
        ...


@runtime_checkable
class Hurries(Protocol):
    """Work that may wait for more before it ends."""

    def hurry(self, until: float) -> None:
        """End the work by this time, because the consumer drains."""


@runtime_checkable
class Forwards(Protocol):
    """Work that does not end in the worker that began it, but elsewhere."""

    @property
    def landed(self) -> Signal:
        """Fires when none of it is under way any more."""
        ...

    @property
    def outage(self) -> str | None:
        """Why forwarded work cannot end now, for operators; `None` if it can."""
        ...

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Take back forwarded work of these claims that has not begun."""


class Workers:
    """The workers of a consumer: when they start, rest and wake."""

    def __init__(self, most: int, failed: Callable[[BaseException], None]) -> None:
        self._most = most
        self._failed = failed
        self._work: Work | None = None
        self._forwards: Forwards | None = None
        self._hurries: Hurries | None = None
        self.slots: list[Slot] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self.is_waking = False
        """Whether a worker has been woken or started, or yields, and has not run yet."""
        self.yields_soon = False
        """Whether a message has started a task, which begins when the worker yields."""
        self._is_stopping = False

    def begin(self, work: Work) -> None:
        """Start this work."""
        given: object = work
        self._work = work
        self._forwards = given if isinstance(given, Forwards) else None
        self._hurries = given if isinstance(given, Hurries) else None
        self.wake()

    def wake(self) -> None:
        """Wake a resting worker, or start a new one, unless a wake-up is outstanding."""
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
        """Suspend a worker until there may be work; return whether to continue."""
        if self._is_stopping:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter
        self.is_waking = False
        return True

    def stop(self) -> None:
        """Let each worker end once it finds no work."""
        self.wake()  # for the last batch
        self._is_stopping = True
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()

    @property
    def is_stuck(self) -> bool:
        """Whether nothing continues unless an operator unblocks a message."""
        return self._work is None or self._work.is_stuck

    @property
    def landed(self) -> tuple[Signal, ...]:
        """The signals of forwarded work, which may end after its messages."""
        return () if self._forwards is None else (self._forwards.landed,)

    @property
    def outage(self) -> str | None:
        """Why forwarded work cannot end now; `None` if it can, or if there is none."""
        return None if self._forwards is None else self._forwards.outage

    def withdraw(self, claims: Collection[Claim]) -> None:
        """Take back forwarded work of these claims that has not begun."""
        if self._forwards is not None:
            self._forwards.withdraw(claims)

    def hurry(self, until: float) -> None:
        """End work by this time that may wait for more."""
        if self._hurries is not None:
            self._hurries.hurry(until)

    def end_on_exit(self, error: BaseException) -> None:
        """End the consumer if a handler raised `KeyboardInterrupt` or `SystemExit`."""
        if isinstance(error, Exit):
            self._failed(error)

    def mark_yielding(self) -> None:
        """Record that a worker yields, and will take the next message: no other is woken for it."""
        self.is_waking = True
        self.yields_soon = False

    def yield_soon(self) -> None:
        """Let a worker yield after its current message, which has started a task."""
        self.yields_soon = True

    def mark_running(self) -> None:
        """Record that the woken or new worker runs, or the one that has yielded."""
        self.is_waking = False

    @property
    def running(self) -> Iterator[Message]:
        """The running messages."""
        return (message for slot in self.slots for message in slot.messages())

    def running_here(self) -> list[Message]:
        """Return the messages whose handler runs in the current task."""
        task = asyncio.current_task()
        return [message for slot in self.slots if slot.task is task for message in slot.messages()]

    def _ended(self, slot: Slot, error: BaseException | None) -> None:
        self.slots.remove(slot)
        if error is not None:
            self._failed(error)
        self.is_waking = False  # it may have been woken, and then cancelled
        self.wake()


def result_of_cut(cut_by: BaseException | None, result: object) -> object:
    """Return the result of a turn whose worker was cancelled, by a cut with the error `cut_by` or
    for another reason.

    A cut handler has failed, unless it returns an explicit result. A handler that returns `None`
    after a cut has usually swallowed the cancellation, so the message may not be handled. The error
    is that of the cut, unless the handler raised its own.
    """
    if cut_by is None:
        return result
    if result is None or (isinstance(result, Nak) and _is_cancellation(result.error)):
        return Nak(error=cut_by)
    return result


def is_closed(task: asyncio.Task[object]) -> bool:
    """Return whether the task's coroutine is closed from outside, at the end of its loop."""
    return running_loop() is None or asyncio.current_task() is not task


def _is_cancellation(error: BaseException | None) -> bool:
    return isinstance(error, asyncio.CancelledError)


class SingleMessages:
    """Work that handles one message at a time."""

    def __init__(
        self,
        schedule: Schedule,
        settler: Settler,
        workers: Workers,
        run: Run,
        handler: Handler,
    ) -> None:
        self.schedule = schedule
        self.settler = settler
        self.workers = workers
        self.run = run
        self.handler = handler

    @property
    def is_waiting(self) -> bool:
        """Whether a message is ready."""
        return bool(self.schedule.ready)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing continues unless an operator unblocks a message."""
        return self.schedule.is_stuck

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
        shared, task, turns = self._shared, asyncio.current_task(), 0
        assert task is not None
        schedule, workers, settler = shared.schedule, shared.workers, shared.settler
        ready, window, acknowledge = schedule.ready, schedule.window, schedule.acknowledge
        handler, sleep, refill = shared.handler, shared.run.clock.sleep, window.refill_messages
        room, settled, is_cancelling = shared.run.room, shared.run.settled, task.cancelling
        workers.mark_running()
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
                try:
                    end = refused(message) if schedule.has_undecodable else None
                    result = end or await handler(message)
                except NotLoaded as missing:
                    result = await called_again(missing, handler, message)
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
                workers.mark_yielding()
                await sleep(0)
                workers.mark_running()
