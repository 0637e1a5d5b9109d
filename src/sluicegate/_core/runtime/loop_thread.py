"""An event loop on its own thread.

A signal may interrupt a thread at any moment while it waits for the loop, and must not affect the
loop. So the two share only raw locks: an interrupt could leave the locks inside a `Future`, `Event`
or `Condition` held forever, and block the loop.

Objects with such a thread are ended before the interpreter stops threads. `atexit` hooks run too
late: by then `concurrent.futures` accepts no more work, so a sink that is a plain function could
not write. The exit hooks of `threading` run earlier, in reverse order of registration.
`concurrent.futures` registers its hook when its thread pool is imported; this module imports it
first, so our hook runs before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  # pyright: ignore[reportUnusedImport]  # see above
import contextlib
import contextvars
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from ..clock import LOOP_CLOCK
from ..errors import ClosedError
from ..logs import log_safely
from ..text import repr_of
from .run import run_on_new_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future

    Step = Callable[[], Awaitable[object]]


R = TypeVar("R")

INTERRUPTS = 1000
"""Swallowed interrupts per object; each ends its shutdown immediately."""


async def _nothing() -> None: ...


class LoopCall(Generic[R]):
    """A call from a thread into the loop: its task, and its result, which is set once."""

    __slots__ = ("_arrived", "_error", "_value", "is_abandoned", "is_done", "task")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._value: R | None = None
        self._error: BaseException | None = None
        self.is_done = False
        self.is_abandoned = False  # whether the thread has stopped waiting
        self.task: asyncio.Task[R] | None = None

    def begin(self, work: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        self.task = asyncio.get_running_loop().create_task(work, name=name)
        return self.task

    def finish(self, value: R | None = None, error: BaseException | None = None) -> None:
        """Set the result and wake the thread; later results are ignored."""
        if not self.is_done:
            self._value, self._error, self.is_done = value, error, True
            self._arrived.release()

    def abandon(self) -> None:
        self.is_abandoned = True

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def wait(self, timeout: float | None = None) -> R:
        """Block for the result; return or raise it. Raises `TimeoutError` after `timeout` s."""
        seconds = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        if not self._arrived.acquire(timeout=seconds):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return cast("R", self._value)


class LoopThread:
    """A daemon thread whose event loop runs work of other threads, until `end` is called.

    A daemon thread does not keep the process alive when a sink ignores its cancellation. A
    `SystemExit` or `KeyboardInterrupt` raised on it, by a sink or an observer, is logged to
    `logger` and has no other effect. Work of `ask`, `call` and `call_soon` runs in a copy of
    `context` (by default an empty one). `on_end` is called on the thread after the loop has closed.
    """

    def __init__(
        self,
        name: str,
        *,
        logger: logging.Logger,
        context: contextvars.Context | None = None,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._name = name
        self._logger = logger
        self._context = contextvars.Context() if context is None else context
        self._on_end = on_end
        # reentrant: a signal handler or a finalizer that logs may call it recursively
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: asyncio.Future[None] | None = None
        self._ready: LoopCall[None] = LoopCall()
        self._calls: dict[LoopCall[Any], None] = {}

    def start(self, opening: Step = _nothing, closing: Step = _nothing) -> None:
        """Start the thread, and block until `opening` has returned on its loop.

        An error of `opening` is raised here, after the thread has ended. If the wait is
        interrupted, call `abandon`; `closing` runs only then.
        """
        run, args = self._context.copy().run, (self._run, opening, closing)
        self._thread = threading.Thread(target=run, args=args, name=self._name, daemon=True)
        try:
            self._thread.start()
            self._ready.wait()
        except Exception:
            self._thread.join()
            raise

    def abandon(self) -> None:
        """Make the thread run its `closing` as soon as it is open, and end; return immediately."""
        self._ready.abandon()
        self.call_soon(self._tell_end)

    @property
    def is_this(self) -> bool:
        return self._thread is threading.current_thread()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, for its clock and thread-safe calls. Raises `ClosedError` once it has ended."""
        loop = self._loop
        if loop is None:
            raise self._ended_error()
        return loop

    def call_soon(self, callback: Callable[[], object]) -> bool:
        """Make the loop call `callback`; return False, without effect, once the loop has ended."""
        with self._lock:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(callback, context=self._context.copy())
        return True

    def ask(self, make: Callable[[], Coroutine[Any, Any, R]], timeout: float | None = None) -> R:
        """Run the coroutine on the loop, and block until its result; an interrupt cancels it.

        Raises `TimeoutError` after `timeout` seconds, in case the loop is stuck, and `ClosedError`
        once the thread has ended.
        """
        call: LoopCall[R] = LoopCall()
        try:
            with self._lock:
                loop = self.loop
                self._calls[call] = None
                loop.call_soon_threadsafe(self._begin, make, call, context=self._context.copy())
            return call.wait(timeout)
        except BaseException:
            if not call.is_done:
                call.abandon()
                self.call_soon(call.cancel)
            raise

    def call(self, function: Callable[[], R]) -> R:
        """Like `ask`, for a plain function."""

        async def ask() -> R:
            return function()

        return self.ask(ask)

    def spawn(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Start the coroutine on the loop, in the caller's context; its future can cancel it.

        Waiting for the future holds a lock: use `ask` in a thread that signals may interrupt.
        Raises `ClosedError` once the thread has ended; its end cancels running coroutines.
        """
        with self._lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise self._ended_error()

    def end(self, timeout: float | None = None) -> None:
        """Finish running calls, end the loop, wait up to `timeout` s for the thread. Idempotent."""
        self.call_soon(self._tell_end)
        if self._thread is not None:
            self._thread.join(timeout)

    def _ended_error(self) -> ClosedError:
        return ClosedError(f"{self._name} has ended")

    # -- on the thread -----------------------------------------------------------------------------

    def _run(self, opening: Step, closing: Step) -> None:
        try:
            run_on_new_loop(self._serve(opening, closing), 0.0, ignored=self._log_exit)
        finally:
            with self._lock:
                self._loop = None
            self._on_end()
            for call in list(self._calls):
                call.finish(error=self._ended_error())

    async def _serve(self, opening: Step, closing: Step) -> None:
        ready, loop = self._ready, asyncio.get_running_loop()
        self._end = loop.create_future()
        try:
            await opening()
        except BaseException as error:
            ready.finish(error=error)
            return
        with self._lock:
            self._loop = loop
        ready.finish()
        if not ready.is_abandoned:
            await self._end
        if ready.is_abandoned:
            await closing()
        with self._lock:
            self._loop = None
        await LOOP_CLOCK.sleep(0)  # so that earlier calls begin
        running = [call.task for call in self._calls if call.task is not None]
        if running:
            await asyncio.wait(running)

    def _log_exit(self, error: BaseException) -> None:
        message = (
            "%s: %s was raised on its thread, where it ends nothing; a write that it ended "
            "has an unknown outcome"
        )
        log_safely(
            self._logger, logging.ERROR, message, self._name, type(error).__name__, error=error
        )

    def _tell_end(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, R]], call: LoopCall[R]) -> None:
        if call.is_abandoned:
            self._calls.pop(call, None)
        else:
            task = call.begin(make(), f"{self._name} call")
            task.add_done_callback(partial(self._ended, call))

    def _ended(self, call: LoopCall[R], task: asyncio.Task[R]) -> None:
        self._calls.pop(call, None)
        if task.cancelled():
            call.finish(error=self._ended_error())
        elif (error := task.exception()) is not None:
            call.finish(error=error)
        else:
            call.finish(task.result())


logger = logging.getLogger("sluicegate.batcher")


class EndsAtExit(Protocol):
    """An object to end at the interpreter's exit, within its own time limit."""

    def end_at_exit(self) -> None: ...


_running: dict[int, EndsAtExit] = {}
_registered: list[bool] = []


def end_at_exit(thing: EndsAtExit) -> None:
    """Register `thing` to be ended at exit."""
    _running[id(thing)] = thing
    if not _registered:
        _registered.append(True)
        threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # noqa: SLF001  # see above


def forget_at_exit(thing: EndsAtExit) -> None:
    """Unregister `thing`."""
    _running.pop(id(thing), None)


def _end_all() -> None:
    for thing in list(_running.values()):
        try:
            _end(thing)
        except BaseException as error:  # the others must still be ended
            log_safely(
                logger, logging.ERROR, "%s could not be ended at exit", repr_of(thing), error=error
            )


def _end(thing: EndsAtExit) -> None:
    for _ in range(INTERRUPTS):  # an interrupted shutdown ends immediately, and is awaited again
        with contextlib.suppress(KeyboardInterrupt):
            thing.end_at_exit()
            return
    thing.end_at_exit()
