"""The jobs of one scheduler while a consumer runs.

1. As with the workers of a consumer, at most one wake-up is outstanding: the woken worker takes a
   job, and then wakes the next worker if more are ready.
2. The error of a failed job is passed to the finaliser. Without one, it is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ..._core.classify import classified
from ..._core.clock import LOOP_CLOCK
from ..._core.logs import for_log, log_safely
from ..._core.retry_policy import RetryState
from ..._core.runtime.loops import Exit
from ..results import Nak
from .calling import check_returned_nothing
from .queue import JobQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..._core.retry_policy import RetryPolicy
    from .context import EventContext, Finalise
    from .events import Events
    from .queue import Job

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
    ) -> None:
        self._events = events
        self._process = process
        self._finalise = finalise
        self._retry = retry
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
        self._wake()

    @property
    def running(self) -> int:
        """Number of jobs that are being processed."""
        return sum(job is not None for job in self._workers.values())

    def place(self, job: Job) -> str:
        """Return the place of a job, for operators."""
        return "running" if job in self._workers.values() else self.queue.place(job)

    # -- in ----------------------------------------------------------------------------------------

    def submit(self, job: Job, context: EventContext) -> bool:
        """Accept a job; return false if it waits for room."""
        job.begin(context)
        has_room = self.queue.offer(job)
        self._wake()
        return has_room

    def withdraw(self, job: Job) -> None:
        """Stop a job: remove it if it waits, cancel it if it runs."""
        job.release()
        for task, running in self._workers.items():
            if running is job:
                task.cancel()
                return
        self._admitted(self.queue.forget(job))
        self._wake()

    def _admitted(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._events.has_room(job.message)

    # -- workers -----------------------------------------------------------------------------------

    def _wake(self) -> None:
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
            self._wake()

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
            if ready:
                self._wake()
            self._workers[task] = job
            error = None if job.message.claim.is_closed else await self._processed(job, task)
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

    async def _processed(self, job: Job, task: asyncio.Task[None]) -> BaseException | None:
        """Run the processor; return its error. A cancellation ends the job, not the worker.
        `KeyboardInterrupt` and `SystemExit` also end the consumer.
        """
        try:
            if self._retry is None:
                await self._process_once(job)
            else:
                await self._tried(job, RetryState(self._retry, classified))
        except Exception as error:  # handled by the finaliser
            return error
        except asyncio.CancelledError as error:
            if self.is_closed:
                raise
            return error
        except Exit as error:
            self._events.failed(error)
            return error
        return None

    async def _process_once(self, job: Job) -> None:
        returned = await self._process(job.key, job.value)
        if returned is not None:
            check_returned_nothing(returned, "process", _RULE)

    async def _tried(self, job: Job, state: RetryState) -> None:
        """Run the processor until it succeeds, has no more tries, or its claim has ended. Raises
        its last error.
        """
        while True:
            try:
                await self._process_once(job)
            except Exception as error:
                failed, wait = error, state.wait_after(error)
            else:
                return
            if wait is not None:
                await LOOP_CLOCK.sleep(wait)
            if wait is None or job.message.claim.is_closed:
                raise failed

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
        context = job.release()
        if context is not None:
            if error is not None and self._finalise is None and not isinstance(error, Exit):
                name, told = self._events.commons.name, for_log(error)
                log_safely(logger, logging.ERROR, _FAILED, name, job.message.coordinates, told)
            self._events.job_complete(context, _finish(self._finalise, job.key, job.value, error))
        self._admitted(self.queue.done(job))

    def hurry(self) -> None:
        """Do nothing: no job waits for others."""

    def close(self) -> None:
        """Cancel the workers; the jobs inside are left."""
        self.is_closed = True
        for task in [*self._workers]:
            task.cancel()


async def _complete(_: EventContext) -> None:
    """Complete an event whose scheduler has no finaliser."""


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


def _finish(
    finalise: Callable[..., Awaitable[object]] | None,
    key: object,
    value: object,
    error: BaseException | None,
) -> Finalise:
    """Return the function that completes an event. It references neither the event nor its context,
    so that no reference cycle is left to the garbage collector.
    """
    if isinstance(error, Exit):
        return partial(_failed, error)
    if finalise is None:
        return _complete
    return Finish(finalise, key, value, error)
