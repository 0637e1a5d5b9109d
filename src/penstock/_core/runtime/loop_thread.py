"""An event loop on a thread of its own, for programs that have none.

The main thread may be interrupted at any moment while it waits for the loop, and the loop must not
notice. So both share raw locks only: what `Future`, `Event` and `Condition` hold while they are
waited for could stay held for ever, and the loop would wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ...batcher import log
from ..clock import LOOP_CLOCK
from ..errors import ClosedError
from .run import run_on_new_loop

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Awaitable, Callable, Coroutine

R = TypeVar("R")


class Answer(Generic[R]):
    """What one thread waits for, and the loop gives, once."""

    __slots__ = ("_arrived", "_error", "_value", "is_given", "is_unwanted", "task")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._value: R | None = None
        self._error: BaseException | None = None
        self.is_given = False
        self.is_unwanted = False
        """Whether the thread waits no longer."""
        self.task: asyncio.Task[R] | None = None

    def give(self, value: R | None = None, error: BaseException | None = None) -> None:
        """Wake the thread; only the first answer counts. The loop's to call."""
        if not self.is_given:
            self._value, self._error, self.is_given = value, error, True
            self._arrived.release()

    def wait(self, timeout: float | None = None) -> R:
        """Block until it is given; return or raise it. Raises `TimeoutError` after `timeout`
        seconds.
        """
        if not self._arrived.acquire(
            timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        ):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return cast("R", self._value)


class LoopThread:
    """Runs `opening` on a new loop in a new thread, then whatever it is asked to, until it is told
    to end.

    The thread is a daemon: what a deaf sink leaves running on it cannot hold the process. A
    `SystemExit` or `KeyboardInterrupt` that is raised on it, by a sink or an observer, is logged
    and ends nothing.
    """

    def __init__(
        self, name: str, context: contextvars.Context, *, on_end: Callable[[], object]
    ) -> None:
        self._name = name
        self._context = context
        self._on_end = on_end
        self._lock = (
            threading.RLock()
        )  # a signal handler or a finalizer that logs may come in here again
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: asyncio.Future[None] | None = None
        self._ready: Answer[None] = Answer()
        self._answers: dict[Answer[Any], None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(
        self, opening: Callable[[], Awaitable[object]], closing: Callable[[], Awaitable[object]]
    ) -> None:
        """Block until `opening` has returned on the loop; what it raises is raised here, and the
        thread has ended.

        When the wait is interrupted, call `abandon`.
        """
        ready = self._ready
        run = self._context.copy().run
        self._thread = threading.Thread(
            target=run, args=(self._run, opening, closing, ready), name=self._name, daemon=True
        )
        try:
            self._thread.start()
            ready.wait()
        except Exception:
            self._thread.join()
            raise

    def abandon(self) -> None:
        """Let the thread run its `closing` as soon as it is open, and end; do not wait for it."""
        self._ready.is_unwanted = True
        self.call_soon(self._tell_end)

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
        """Block until the coroutine has run on the loop; return or raise what it does. Interrupting
        the wait cancels it.

        `timeout` in seconds is for a loop that is stuck: then `TimeoutError`. Raises `ClosedError`
        once the thread has ended.
        """
        answer: Answer[R] = Answer()
        try:
            with self._lock:
                if self._loop is None:
                    raise _gone(self._name)
                self._answers[answer] = None
                self._loop.call_soon_threadsafe(
                    self._begin, make, answer, context=self._context.copy()
                )
            return answer.wait(timeout)
        except BaseException:
            if not answer.is_given:
                answer.is_unwanted = True
                self.call_soon(partial(self._drop, answer))
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

    # -- on the thread -----------------------------------------------------------------------------

    def _run(
        self,
        opening: Callable[[], Awaitable[object]],
        closing: Callable[[], Awaitable[object]],
        ready: Answer[None],
    ) -> None:
        try:
            run_on_new_loop(
                self._serve(opening, closing, ready),
                0.0,
                ignored=partial(log.exit_ignored, self._name),
            )
        finally:
            with self._lock:
                self._loop = None
            self._on_end()
            for answer in list(self._answers):
                answer.give(error=_gone(self._name))

    async def _serve(
        self,
        opening: Callable[[], Awaitable[object]],
        closing: Callable[[], Awaitable[object]],
        ready: Answer[None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        try:
            await opening()
        except BaseException as error:
            ready.give(error=error)
            return
        with self._lock:
            self._loop = loop
        ready.give()
        if not ready.is_unwanted:
            await self._end
        if ready.is_unwanted:
            await closing()
        with self._lock:
            self._loop = None
        await LOOP_CLOCK.sleep(0)  # what was asked before is begun
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _tell_end(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, R]], answer: Answer[R]) -> None:
        if answer.is_unwanted:
            self._answers.pop(answer, None)
            return
        answer.task = asyncio.get_running_loop().create_task(make(), name=f"{self._name} call")
        self._tasks.add(answer.task)
        answer.task.add_done_callback(partial(self._ended, answer))

    def _drop(self, answer: Answer[Any]) -> None:
        """The thread that asked waits no longer."""
        self._answers.pop(answer, None)
        if answer.task is not None:
            answer.task.cancel()

    def _ended(self, answer: Answer[R], task: asyncio.Task[R]) -> None:
        self._tasks.discard(task)
        self._answers.pop(answer, None)
        if task.cancelled():
            answer.give(error=_gone(self._name))
        elif (error := task.exception()) is not None:
            answer.give(error=error)
        else:
            answer.give(task.result())


def _gone(name: str) -> ClosedError:
    return ClosedError(f"{name} has ended")
