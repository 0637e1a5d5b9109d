"""The fake clock: time as the test says."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import checks
from ._loop import Moment, VirtualLoop, WouldHang

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from .._core.clock import TimerHandle

R = TypeVar("R")

IDLE_ROUNDS = 100_000
WALL_START = 1_700_000_000.0


class FakeClock:
    """A clock that owns a virtual event loop, so timeouts inside third-party code are virtual too.

    Time moves by hand with `advance`, or by itself to the exact time of the next timer when nothing else can run (`autojump`). While a
    thread is out or a socket is registered it stands still, and the loop waits in real time, bounded. What would hang raises `WouldHang`.

    Args:
        start: what `now()` reads first, in seconds.
        wall_start: what `wall_time()` reads first, in seconds since the epoch.
        autojump: whether time moves by itself.
    """

    def __init__(self, start: float = 0.0, *, wall_start: float = WALL_START, autojump: bool = True) -> None:
        self._moment = Moment(start, autojump=autojump)
        self._wall_offset = wall_start - start
        self.loop = VirtualLoop(self._moment)
        """The virtual loop."""

    # -- as a clock ---------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Monotonic virtual seconds."""
        return self._moment.time

    def wall_time(self) -> float:
        """Virtual seconds since the epoch."""
        return self._wall_offset + self._moment.time

    async def sleep(self, seconds: float) -> None:
        """Suspend for virtual `seconds`."""
        await asyncio.sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` once when the time is `when`."""
        return self.loop.call_at(when, callback)

    def timeout_at(self, when: float | None) -> asyncio.Timeout:
        """An `asyncio.Timeout` that ends at `when`."""
        return asyncio.timeout_at(when)

    # -- by hand ------------------------------------------------------------------------------------------------------

    async def advance(self, seconds: float | timedelta) -> None:
        """Move time by `seconds`, firing every timer on the way at its exact time, and let everything run that becomes ready."""
        target = self._moment.time + checks.seconds("seconds", seconds, zero=True)
        await self.run_until_idle()
        while (when := self.loop.next_timer()) is not None and when <= target:
            self._moment.time = max(self._moment.time, when)
            await self.run_until_idle()
        self._moment.time = max(self._moment.time, target)

    async def run_until_idle(self) -> None:
        """Let other tasks run until none of them is ready; threads that are out are waited for. Time does not move."""
        for _ in range(IDLE_ROUNDS):
            await asyncio.sleep(0)
            if self._moment.threads:
                await self._thread_returns()
            elif self._is_idle():
                return
        message = "something is always ready: a task that yields in a loop?"
        raise WouldHang(message)

    def _is_idle(self) -> bool:
        ready: Any = self.loop._ready  # type: ignore[attr-defined]  # noqa: SLF001  # the loop's only list of what is ready
        when = self.loop.next_timer()
        return not ready and (when is None or when > self._moment.time)

    async def _thread_returns(self) -> None:
        """Wait in real time for a thread to hand its result over."""
        back = self.loop.create_future()
        self._moment.thread_waiters.append(back)
        await back

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | timedelta | None = None) -> None:
        """Wait until `predicate()` is true, looking after everything that happens; never by polling the time.

        Raises `TimeoutError` after `timeout` virtual seconds, and `WouldHang` when nothing can happen any more.
        """
        limit = None if timeout is None else self._moment.time + checks.seconds("timeout", timeout, zero=True)
        await self.run_until_idle()
        while not predicate():
            when = self.loop.next_timer()
            if limit is not None and (when is None or when > limit):
                self._moment.time = limit
                message = f"{predicate!r} is still false"
                raise TimeoutError(message)
            if when is None:
                message = f"nothing can happen any more and {predicate!r} is false"
                raise WouldHang(message)
            self._moment.time = max(self._moment.time, when)
            await self.run_until_idle()

    @contextlib.contextmanager
    def external(self) -> Iterator[None]:
        """While inside, something that the clock cannot see (a thread of yours) is at work: time does not jump."""
        self._moment.external += 1
        try:
            yield
        finally:
            self._moment.external -= 1

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, R]) -> R:
        """Run `main` to its end on the virtual loop. Raises `WouldHang` instead of hanging."""
        task = self.loop.create_task(main)
        try:
            return self.loop.run_until_complete(task)
        except RuntimeError:
            problem, self._moment.problem = self._moment.problem, None
            if problem is None:
                raise
            self._abandon(task)
            raise problem from None

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Cancel what hangs, so that nothing complains of it later."""
        task.cancel()
        for _ in range(100):
            if task.done():
                break
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        if task.done() and not task.cancelled():
            task.exception()

    def leftovers(self) -> list[str]:
        """The tasks and timers that are still there, described."""
        tasks = [f"task {task.get_name()!r}" for task in asyncio.all_tasks(self.loop)]
        return tasks + [f"timer at {handle.when()}: {handle!r}" for handle in self.loop.timers()]

    def close(self) -> None:
        """Cancel what is left on the loop, and close it."""
        if self.loop.is_closed():
            return
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        for _ in range(100):
            if all(task.done() for task in tasks):
                break
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        for task in tasks:  # a task that ignores its cancellation stays behind; nobody needs to hear of it twice
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self._moment.autojump = True
        with self.external():
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FakeClock(now={self._moment.time})"
