"""The fake clock: time under the control of the test."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import checks
from .._core.runtime.loops import running_loop
from .virtual_loop import (
    MAX_ROUNDS,
    Moment,
    TimeMove,
    VirtualLoop,
    Watch,
    WouldHang,
    task_line,
    timer_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Generator
    from contextvars import Context
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from .._core.clock import TimerHandle

R = TypeVar("R")

WALL_START = 1_700_000_000.0
"""First value of `wall_time()`, a moment in 2023."""


class FakeClock:
    """A clock that owns a virtual event loop, so timeouts inside third-party code are virtual too.

    Time moves manually with `advance`, or automatically to the exact time of the next timer when no
    callback is ready. It does not move automatically during a call in an executor, inside `external()`, or while a socket is registered, even a listening one: then the loop waits
    in real time, for at most `patience` at a time. A run that would hang raises `WouldHang`. Not
    thread-safe, except `external`, `now` and `wall_time`.

    Args:
        start: first value of `now()`, in seconds; default 0.
        patience: real seconds without an event from a thread or a socket, after which the run
            counts as hanging; default 10.
        max_rounds: rounds of the loop in one `run` or after one `advance`, without an outside
            event, after which the run counts as endless; default a million.

    Raises:
        ConfigError: an argument is out of its range.

    Examples:
        >>> from sluicegate import Batcher, Limits
        >>> from sluicegate.sinks import MemorySink
        >>> from sluicegate.testing import FakeClock
        >>> async def main():
        ...     sink = MemorySink()
        ...     async with Batcher(sink, limits=Limits(max_delay=60.0), clock=clock) as batcher:
        ...         await batcher.add("a")
        ...         await clock.advance(59.0)
        ...         print(sink.items)
        ...         await clock.advance(1.0)
        ...         print(sink.items)
        >>> with FakeClock() as clock:
        ...     clock.run(main())
        []
        ['a']
    """

    def __init__(
        self,
        start: float = 0.0,
        *,
        patience: float | timedelta = 10.0,
        max_rounds: int = MAX_ROUNDS,
    ) -> None:
        if not math.isfinite(start):
            raise checks.bad("start", start, "must be a finite number of seconds")
        limits = (
            checks.seconds("patience", patience, usual=checks.LONG_TIMEOUT),
            checks.count("max_rounds", max_rounds),
        )
        self._moment = Moment(float(start), *limits)
        self._start = float(start)
        self._stuck: set[asyncio.Task[Any]] = set()
        self._loop: VirtualLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The virtual loop, created on first use and closed by `close`."""
        return self._own()

    def _own(self) -> VirtualLoop:
        if self._loop is None:
            self._loop = VirtualLoop(self._moment)
        return self._loop

    def _inside(self) -> VirtualLoop:
        """Return the loop. It must be the running one, because time is real on any other loop."""
        loop = self._loop
        if loop is None or asyncio.get_running_loop() is not loop:
            raise RuntimeError(
                "this FakeClock does not run the current loop: start the coroutine with clock.run()"
            )
        return loop

    # -- as a clock --------------------------------------------------------------------------------

    def now(self) -> float:
        """Monotonic virtual seconds."""
        return self._moment.time

    def wall_time(self) -> float:
        """Virtual seconds since the epoch."""
        return WALL_START + (self._moment.time - self._start)

    async def sleep(self, seconds: float) -> None:
        """Suspend for virtual `seconds`; 0 lets other tasks run once. Safe to cancel."""
        self._inside()
        await asyncio.sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` once from the loop at the time `when`, or immediately if that has passed.

        Raises `RuntimeError` on another running loop, which would wait forever.
        """
        if running_loop() not in {None, self._loop}:
            self._inside()
        return self._own().call_at(when, callback)

    def timeout_at(self, when: float | None) -> asyncio.Timeout:
        """Return an `asyncio.Timeout` that expires at `when`, or never if that is `None`."""
        return asyncio.timeout_at(when)

    # -- manual moves ------------------------------------------------------------------------------

    async def advance(self, seconds: float | timedelta, *, wait_for_threads: bool = True) -> None:
        """Move time by `seconds`, firing every timer on the way at its exact time, in order.

        Returns when nothing is ready at the end. Sockets and external activities do not delay it.
        Before each step it waits in real time for calls in an executor, unless `wait_for_threads`
        is false. Suspends always; after a cancellation time has moved only partly. Raises
        `ConfigError` if `seconds` is negative; `run` raises `WouldHang` if a thread does not return
        within the clock's patience.
        """
        await self._move(
            checks.seconds("seconds", seconds, zero=True, usual=checks.ANY_LENGTH),
            wait_for_threads=wait_for_threads,
        )

    async def run_until_idle(self, *, wait_for_threads: bool = True) -> None:
        """Let other tasks run until no callback is ready. Due timers fire; time does not move.

        Suspends, raises and can be cancelled like `advance`.
        """
        await self._move(0.0, wait_for_threads=wait_for_threads)

    async def _move(self, seconds: float, *, wait_for_threads: bool) -> None:
        move = TimeMove(
            self._moment.time + seconds, wait_for_threads, self._inside().create_future()
        )
        self._moment.outside_event()
        self._moment.moves.append(move)
        try:
            await move.done
        finally:
            self._moment.moves.remove(move)

    async def wait_for(
        self, predicate: Callable[[], object], timeout: float | timedelta | None = None
    ) -> None:
        """Wait until `predicate()` is true; it is checked after every round of the loop.

        Suspends unless it is true immediately. Raises the predicate's errors, `TimeoutError` after
        `timeout` virtual seconds (none by default), and `WouldHang` if nothing else can happen.
        Safe to cancel.
        """
        limit = checks.optional_seconds("timeout", timeout, zero=True, usual=checks.ANY_LENGTH)
        loop = self._inside()
        if predicate():
            return
        watch = Watch(predicate, loop.create_future())
        timer = None if limit is None else loop.call_at(self._moment.time + limit, _give_up, watch)
        self._moment.watches.append(watch)
        try:
            await watch.done
        finally:
            self._moment.watches.remove(watch)
            if timer is not None:
                timer.cancel()

    @contextlib.contextmanager
    def external(self) -> Generator[None, None, None]:
        """Mark activity that the clock cannot see, such as your own thread: time does not jump
        during it.

        May be entered and left in any thread. Does not suspend. Callbacks that the thread schedules
        on the loop before it leaves are never missed.
        """
        self._moment.hold(external=1)
        try:
            yield
        finally:
            self._own().let_go(external=1)

    # -- running -----------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, R], *, context: Context | None = None) -> R:
        """Run `main` to its end on the virtual loop, and return its result; blocks.

        `context` holds the context variables for `main`; default: a copy of the current ones.

        May be called again until `close`. Raises the errors of `main`, `WouldHang` if nothing else
        can happen (`main` is cancelled then), and `RuntimeError` inside a running loop. Other tasks
        stay until `close`.
        """
        task = self._task(main, context)
        self._moment.outside_event()
        try:
            return self._own().run_until_complete(task)
        except WouldHang as hang:
            if task.done():
                raise
            self._unwind([task])
            error = task.exception() if task.done() and not task.cancelled() else None
            raise hang.with_traceback(None) from error  # without the frames of the loop

    def _task(self, main: Coroutine[Any, Any, R], context: Context | None) -> asyncio.Task[R]:
        try:
            self._check_outside("run")
            return self._own().create_task(main, context=context)
        except BaseException:
            main.close()
            raise

    def _check_outside(self, method: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError(f"FakeClock.{method}() cannot be called from a running loop")

    def _unwind(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Cancel `tasks` and wait for their end; a task that still hangs stays, without a warning."""
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        try:
            with self._moment.unwinding():
                self._own().run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        except WouldHang:
            self._stuck.update(task for task in tasks if not task.done())
        for task in self._stuck:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # no public switch

    def leftovers(self) -> list[str]:
        """Descriptions of the tasks and timers that still exist."""
        if self._loop is None or self._loop.is_closed():
            return []
        return [task_line(task) for task in asyncio.all_tasks(self._loop)] + [
            timer_line(timer) for timer in self._loop.timers()
        ]

    def close(self) -> None:
        """Cancel the remaining tasks, end the loop's generators and executor, and close it; blocks.

        Idempotent. Raises `WouldHang` if a call in an executor does not return within the clock's
        patience (the loop is closed nevertheless), and `RuntimeError` inside a running loop.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        self._check_outside("close")
        try:
            tasks = asyncio.all_tasks(loop) - self._stuck
            self._unwind(tasks)
            _report(loop, tasks)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(self.run_until_idle())
            with self.external():
                loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FakeClock(now={self._moment.time})"


def _give_up(watch: Watch) -> None:
    if not watch.done.done() and not watch.look():
        watch.done.set_exception(TimeoutError(f"{watch.predicate!r} is still false"))


def _report(loop: VirtualLoop, tasks: Collection[asyncio.Task[Any]]) -> None:
    """Pass errors of cancelled tasks to the loop's exception handler, as `asyncio.Runner` does."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler(
                {
                    "message": "unhandled exception while closing a FakeClock",
                    "exception": error,
                    "task": task,
                }
            )
