"""An event loop on a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from .._core.clock import LOOP_CLOCK
from .._core.errors import ClosedError
from .run import run

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Awaitable, Callable, Coroutine

R = TypeVar("R")


class LoopThread:
    """Runs `opening` on a new loop in a new thread, then whatever it is asked to, until it is told to end.

    The thread is a daemon: what a deaf sink leaves running on it cannot hold the process.
    """

    def __init__(self, name: str, context: contextvars.Context, *, on_end: Callable[[], object]) -> None:
        self._name = name
        self._context = context
        self._on_end = on_end
        self._lock = threading.RLock()  # a signal handler or a finalizer that logs may come in here again
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: asyncio.Future[None] | None = None
        self._answers: dict[Future[Any], None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, opening: Callable[[], Awaitable[object]]) -> None:
        """Block until `opening` has returned on the loop; what it raises is raised here, and the thread has ended."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._context.copy().run, args=(self._run, opening, ready), name=self._name, daemon=True)
        self._thread.start()
        try:
            ready.result()
        except Exception:
            self._thread.join()
            raise

    @property
    def is_this(self) -> bool:
        """Whether the caller is on it."""
        return self._thread is threading.current_thread()

    def call_soon(self, callback: Callable[[], object]) -> bool:
        """Have the loop call `callback`; False once it has ended, and nothing happens."""
        with self._lock:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(callback, context=self._context.copy())
        return True

    def ask(self, make: Callable[[], Coroutine[Any, Any, R]], timeout: float | None = None) -> R:
        """Block until the coroutine has run on the loop; return or raise what it does. Interrupting the wait cancels it.

        `timeout` in seconds is for a loop that is stuck: then `TimeoutError`. Raises `ClosedError` once the thread has ended.
        """
        answer: Future[R] = Future()
        with self._lock:
            if self._loop is None:
                raise _gone(self._name)
            self._answers[answer] = None
            self._loop.call_soon_threadsafe(self._begin, make, answer, context=self._context.copy())
        try:
            return answer.result(timeout)
        except BaseException:
            answer.cancel()
            raise

    def call(self, function: Callable[[], R]) -> R:
        """As `ask`, for a plain function."""

        async def ask() -> R:
            return function()

        return self.ask(ask)

    def end(self) -> None:
        """Let the loop end and wait for its thread; again and again has no effect."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._tell_end)
        if self._thread is not None:
            self._thread.join()

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run(self, opening: Callable[[], Awaitable[object]], ready: Future[None]) -> None:
        try:
            run(self._serve(opening, ready), patience=0.0)
        finally:
            with self._lock:
                self._loop = None
            self._on_end()
            for answer in list(self._answers):
                _fail(answer, _gone(self._name))

    async def _serve(self, opening: Callable[[], Awaitable[object]], ready: Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        try:
            await opening()
        except BaseException as error:
            ready.set_exception(error)
            return
        with self._lock:
            self._loop = loop
        ready.set_result(None)
        await self._end
        with self._lock:
            self._loop = None
        await LOOP_CLOCK.sleep(0)  # what was asked before is begun
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _tell_end(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, R]], answer: Future[R]) -> None:
        if answer.cancelled():
            self._answers.pop(answer, None)
            return
        task = asyncio.get_running_loop().create_task(make(), name=f"{self._name} call")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._answer(task, answer))
        answer.add_done_callback(lambda answer: self.call_soon(task.cancel) if answer.cancelled() else None)

    def _answer(self, task: asyncio.Task[R], answer: Future[R]) -> None:
        self._tasks.discard(task)
        self._answers.pop(answer, None)
        if task.cancelled():
            _fail(answer, _gone(self._name))
        elif (error := task.exception()) is not None:
            _fail(answer, error)
        elif answer.set_running_or_notify_cancel():
            answer.set_result(task.result())


def _gone(name: str) -> ClosedError:
    return ClosedError(f"{name} has ended")


def _fail(answer: Future[Any], error: BaseException) -> None:
    if not answer.done() and answer.set_running_or_notify_cancel():
        answer.set_exception(error)
