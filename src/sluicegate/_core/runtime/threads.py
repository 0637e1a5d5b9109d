"""Work that completes despite cancellation, in a thread or in its own task; threads that may be
abandoned; and the time by which a stopped consumer has to be closed.

Each clean-up that talks to a server has its own limit, such as `close_timeout`. All of them
together end with the drain, plus one second. Tasks that are created in the context see the limit
too.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from ..clock import LOOP_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


P = ParamSpec("P")
R = TypeVar("R")

GRACE = 1.0
"""Seconds for closing after the end of a drain."""
MARGIN = 0.2
"""The last part of these seconds, for cutting off what has not ended by itself."""


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function` in the loop's thread pool; suspend until it has ended, even when cancelled.

    A thread cannot be stopped, so a cancelled write continues. `CancelledError` is raised only
    after the thread has ended, so that no second write runs at the same time. The result is then
    lost, and the outcome of the write is unknown.
    """
    work = partial(contextvars.copy_context().run, function, *args, **kwargs)
    call = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        call.exception()  # retrieved, so that asyncio does not report it
        raise cancelled
    return call.result()


async def uncut(work: Coroutine[Any, Any, R], *, within: float) -> R:
    """Run `work` to its end even when cancelled; then raise the cancellation.

    `within` seconds after the cancellation, or with the end of the closing, `work` is cancelled
    too. Its result is lost.
    """
    call = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call], timeout=close_within(within))
        if call.done() and not call.cancelled():
            call.exception()  # retrieved, so that asyncio does not report it
        raise
    finally:
        call.cancel()


class AbandonableThreads(Executor):
    """Up to `most` threads for calls that may wait for a silent peer. The end of the process does
    not wait for them, as it would for those of `ThreadPoolExecutor`.
    """

    def __init__(self, most: int, name: str) -> None:
        self._names = [f"{name}_{number}" for number in range(most)]
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._started = 0
        self._is_over = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call `fn` in a thread. Not thread-safe. Raises `RuntimeError` after `shutdown`."""
        if self._is_over:  # no thread would run it
            raise RuntimeError("cannot schedule new futures after shutdown")
        made: Future[R] = Future()

        def call() -> None:
            if not made.set_running_or_notify_cancel():
                return
            try:
                made.set_result(fn(*args, **kwargs))
            except BaseException as error:
                made.set_exception(error)

        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and self._started < len(self._names):
            name = self._names[self._started]
            self._started += 1
            Thread(target=self._work, name=name, daemon=True).start()
        return made

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
            self._idle.release()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End the threads after their calls; does not wait for them."""
        self._is_over = True
        for _ in range(self._started):
            self._calls.put(None)


class Closing:
    """The time by which everything in its context has to be closed, once it is known."""

    def __init__(self) -> None:
        self.until: float | None = None

    def __enter__(self) -> Self:
        _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.set(None)

    def limit(self, drain: float) -> None:
        """End all clean-ups this many seconds from now, plus the grace."""
        self.until = LOOP_CLOCK.now() + drain + GRACE

    def within(self, seconds: float) -> float:
        """Return the seconds for closing everything, at most `seconds`."""
        return (
            seconds if self.until is None else max(0.0, min(seconds, self.until - LOOP_CLOCK.now()))
        )


_current: ContextVar[Closing | None] = ContextVar("closing", default=None)


def close_within(seconds: float) -> float:
    """Return the seconds for a clean-up whose own limit is `seconds`.

    It ends `MARGIN` before everything is cut off.
    """
    closing = _current.get()
    if closing is None or closing.until is None:
        return seconds
    return max(0.0, closing.within(seconds + MARGIN) - MARGIN)
