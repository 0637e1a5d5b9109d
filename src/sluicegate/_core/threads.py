"""Work that completes despite cancellation, in a thread or in its own task, and threads that may be
abandoned.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .runtime.closing import close_within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function` in the loop's thread pool; suspend until it has ended, even when cancelled.

    A thread cannot be stopped, and continues to write. Cancellation is raised when it has ended, so
    that no second write runs concurrently; then the result is lost, and the outcome of the write is
    unknown.
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
