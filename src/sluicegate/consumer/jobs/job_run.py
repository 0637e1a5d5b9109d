"""The jobs of one scheduler while a consumer runs.

1. The jobs of a key are processed one after another, in the order in which they were offered.
2. A job has room if its key has fewer than `max_per_key` waiting jobs or, for a new key, if there
   are fewer than `max_keys` keys. Jobs without room wait in the order of their arrival. They do not
   delay later jobs of other keys that have room.
3. As with the workers of a consumer, at most one wake-up is outstanding: the woken worker takes a
   job, and then wakes the next worker if more are ready.
4. The error of a failed job is passed to the finaliser. Without one, it is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core.classify import classified
from ..._core.clock import LOOP_CLOCK
from ..._core.logs import for_log, log_safely
from ..._core.order.lanes import Entry, Lanes
from ..._core.retry_policy import RetryState
from ..._core.runtime.loops import Exit
from ..handling.handlers import check_returned_nothing
from ..handling.results import Nak
from .context import Pending, complete

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from ..._core.retry_policy import RetryPolicy
    from .context import EventContext, Finalise
    from .events import Events


logger = logging.getLogger("sluicegate.consumer")

TURNS_BEFORE_YIELD = 128

_FAILED = (
    "%s: the job of %s failed (%s); its scheduler has no finaliser, so the event is complete "
    "nevertheless"
)
_RULE = "raise an error, which is passed to the finaliser, and return the result there"


class JobRun:
    """Processing of jobs by resident workers, which are started on demand."""

    def __init__(
        self,
        events: Events,
        process: Callable[..., Awaitable[object]],
        finalise: Callable[..., Awaitable[object]] | None,
        bounds: tuple[int, int, int],
        retry: RetryPolicy | None,
        *,
        name: str,
    ) -> None:
        self._events = events
        self._process = process
        self._finalise = finalise
        self._retry = retry
        self.name = name
        self._concurrency, max_keys, max_per_key = bounds
        self.queue = JobQueue(max_keys, max_per_key)
        self.is_closed = False
        self._workers: dict[asyncio.Task[None], Job | None] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_waking = False
        """Whether a worker has been woken or started, and has not run yet."""

    def limit(self, concurrency: int, max_keys: int, max_per_key: int) -> None:
        """Change the limits."""
        self._concurrency = concurrency
        self.queue.limit(max_keys, max_per_key)
        self._admitted(self.queue.admit())
        self.wake()

    @property
    def running(self) -> int:
        """Number of jobs that are being processed."""
        return sum(job is not None for job in self._workers.values())

    def place(self, job: Job) -> str:
        """Return the place of a job, for operators."""
        return "running" if job in self._workers.values() else self.queue.place(job)

    # -- in ----------------------------------------------------------------------------------------

    def withdraw(self, job: Job) -> None:
        """Stop a job: remove it if it waits, cancel it if it runs."""
        for task, running in self._workers.items():
            if running is job:
                task.cancel()
                return
        self._admitted(self.queue.forget(job))
        self.wake()

    def _admitted(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._events.let_continue(job.context.message)

    # -- workers -----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake or start a worker if a job is ready, unless a wake-up is outstanding."""
        if self._is_waking or not self.queue.ready:
            return
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                self._is_waking = True
                waiter.set_result(None)
                return
        if len(self._workers) < self._concurrency:
            self._is_waking = True
            task = asyncio.get_running_loop().create_task(self._work())
            self._workers[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._workers.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.failed(error)
        self._is_waking = False  # it may have been woken, and then cancelled
        if not self.is_closed:
            self.wake()

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        ready, turns = self.queue.ready, 0
        self._is_waking = False
        while not self.is_closed:
            if not ready or len(self._workers) > self._concurrency:
                if len(self._workers) > self._concurrency:
                    return
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                self._is_waking = False
                continue
            job = ready.popleft()
            if ready and not self._is_waking:
                self.wake()
            self._workers[task] = job
            is_left = job.context.message.claim.is_closed
            error = None if is_left else await self._processed(job)
            self._workers[task] = None
            self._done(job, error)
            if task.cancelling():
                await self._settle_down(task)
            turns += 1
            if turns >= TURNS_BEFORE_YIELD:
                turns = 0
                self._is_waking = True  # it takes the next job: no other worker is woken for it
                await LOOP_CLOCK.sleep(0)
                self._is_waking = False

    async def _processed(self, job: Job) -> BaseException | None:
        """Run the processor until it succeeds, has no more attempts, or its claim has ended; return
        its last error, for the finaliser. A cancellation ends the job, not the worker.
        `KeyboardInterrupt` and `SystemExit` also end the consumer.
        """
        state = None if self._retry is None else RetryState(self._retry, classified)
        try:
            while True:
                try:
                    returned = await self._process(job.key, job.value)
                    if returned is not None:
                        check_returned_nothing(returned, "process", _RULE)
                except Exception as error:
                    failed, wait = error, None if state is None else state.wait_after(error)
                else:
                    return None
                if wait is not None:
                    await LOOP_CLOCK.sleep(wait)
                if wait is None or job.context.message.claim.is_closed:
                    return failed
        except asyncio.CancelledError as error:
            if self.is_closed:
                raise
            return error
        except Exit as error:
            self._events.failed(error)
            return error

    async def _settle_down(self, task: asyncio.Task[None]) -> None:
        """Revoke the cancellations of a job that has ended, including an undelivered one, which
        would cancel the next job.
        """
        if self.is_closed:
            return
        with suppress(asyncio.CancelledError):
            await LOOP_CLOCK.sleep(0)
        while task.cancelling():
            task.uncancel()

    def _done(self, job: Job, error: BaseException | None) -> None:
        if self._finalise is None and error is None:
            self._events.complete(job.context)
        else:
            self._events.job_complete(job.context, self._finish(job, error))
        if admitted := self.queue.done(job):
            self._admitted(admitted)

    def _finish(self, job: Job, error: BaseException | None) -> Finalise:
        """Return the function that completes an event. It references neither the event nor its
        context, so that no reference cycle is left to the garbage collector.
        """
        if isinstance(error, Exit):
            return partial(_failed, error)
        if self._finalise is not None:
            return Finish(self._finalise, job.key, job.value, error)
        if error is not None and job.is_awaited:
            name, where = self._events.run.name, job.context.message.coordinates
            log_safely(logger, logging.ERROR, _FAILED, name, where, for_log(error))
        return complete

    def close(self) -> None:
        """Cancel the workers; pending jobs are left."""
        self.is_closed = True
        for task in [*self._workers]:
            task.cancel()


async def _failed(error: BaseException, _: EventContext) -> Nak:
    """Fail an event whose processor raised `KeyboardInterrupt` or `SystemExit`."""
    return Nak(error=error)


class Finish:
    """A scheduler's finaliser with the arguments of one job."""

    __slots__ = ("_arguments", "_finalise")

    def __init__(self, finalise: Callable[..., Awaitable[object]], *arguments: object) -> None:
        self._finalise = finalise
        self._arguments = arguments

    def __call__(self, context: EventContext) -> Awaitable[object]:
        """Finalise the event."""
        return self._finalise(context, *self._arguments)


class Job(Entry, Pending):
    """A value that is processed for a key, on behalf of an event: the result of
    `JobScheduler.schedule`, returned by a handler.
    """

    __slots__ = ("_run", "context", "key", "value")

    def __init__(
        self, run: JobRun, lane_key: Hashable, key: Any, value: Any, context: EventContext
    ) -> None:
        # `super().__init__` is not called, since this runs once per event
        self._run = run
        self.lane_key = lane_key
        self.behind = None
        self.key = key
        self.value = value
        self.context = context

    def submit(self) -> bool:
        """Begin the job; return false if it waits for room."""
        run = self._run
        has_room = run.queue.offer(self)
        run.wake()
        return has_room

    def withdraw(self) -> None:
        """Stop the job."""
        self._run.withdraw(self)

    @property
    def is_awaited(self) -> bool:
        """Whether its event waits for it."""
        return self.context.turn.job is self

    @property
    def what(self) -> str:
        """A description, for errors."""
        return f"a job of {self.key!r} in {self._run.name!r}"

    def __str__(self) -> str:
        return f"in {self._run.name}: {self._run.place(self)}"


class JobQueue:
    """The pending jobs of a scheduler."""

    def __init__(self, max_keys: int, max_per_key: int) -> None:
        self.ready: deque[Job] = deque()
        self._lanes: Lanes[Job] = Lanes()
        self._crowd: deque[Job] = deque()
        """Jobs without room."""
        self.max_keys = max_keys
        self.max_per_key = max_per_key

    def __len__(self) -> int:
        """Number of jobs that wait for their key."""
        return self._lanes.waiting

    @property
    def key_count(self) -> int:
        """Number of keys with a pending job."""
        return len(self._lanes)

    @property
    def crowd_count(self) -> int:
        """Number of jobs that wait for room."""
        return len(self._crowd)

    def has_key(self, lane_key: Hashable) -> bool:
        """Return whether a job of this key is pending."""
        return lane_key in self._lanes.active

    def limit(self, max_keys: int, max_per_key: int) -> None:
        """Change the limits from now on; pending jobs stay."""
        self.max_keys, self.max_per_key = max_keys, max_per_key

    def offer(self, job: Job) -> bool:
        """Accept a job and return true, or let it wait for capacity and return false."""
        if self._crowd and any(each.lane_key == job.lane_key for each in self._crowd):
            is_in = False
        else:
            is_in = self._take(job)
        if not is_in:
            self._crowd.append(job)
        return is_in

    def _take(self, job: Job) -> bool:
        lanes, key = self._lanes, job.lane_key
        if key not in lanes.active:
            if len(lanes.active) >= self.max_keys:
                return False
            lanes.active.add(key)
            self.ready.append(job)
            return True
        if lanes.length(key) >= self.max_per_key:
            return False
        lanes.wait(job)
        return True

    def place(self, job: Job) -> str:
        """Return the place of a job that has not begun, for operators."""
        if job in self._crowd:
            return (
                f"{self.key_count} of {self.max_keys} keys, {self.max_per_key} jobs per key at most"
            )
        return "waiting for a worker" if job in self.ready else "behind earlier jobs of its key"

    def done(self, job: Job) -> list[Job]:
        """End the turn of a job; return the jobs that now have room."""
        following = self._lanes.leave(job.lane_key)
        if following is not None:
            self.ready.append(following)
        return self.admit() if self._crowd else []

    def admit(self) -> list[Job]:
        """Accept and return the jobs that now have room."""
        taken: list[Job] = []
        left: deque[Job] = deque()
        full: set[Hashable] = set()
        for job in self._crowd:
            if job.lane_key not in full and self._take(job):
                taken.append(job)
            else:
                full.add(job.lane_key)
                left.append(job)
        self._crowd = left
        return taken

    def forget(self, job: Job) -> list[Job]:
        """Remove a job that has not begun; return the jobs that no longer wait for room, possibly
        itself.
        """
        if job in self._crowd:
            self._crowd.remove(job)
            return [job]
        if job in self.ready:
            self.ready.remove(job)
            return self.done(job)
        self._lanes.drop(job)
        return self.admit() if self._crowd else []
