"""An event loop whose time is its own.

1. `time()` is the clock's, so every timeout on the loop is virtual, third-party code included.
2. Time moves only when nothing can run: the selector is asked to wait, and decides. With a thread out, an external activity or a socket
   registered it waits in real time, bounded; otherwise it jumps to the exact `when` of the next timer.
3. With nothing to jump to, nobody would ever wake: that is `WouldHang`, raised out of `run`, with a list of what waits.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from selectors import SelectorKey

    from _typeshed import FileDescriptorLike

REAL_PATIENCE = 30.0
"""Real seconds that a thread, an external activity or a socket may keep the loop waiting."""


class WouldHang(AssertionError):  # it says what would happen, and is an assertion of the test's
    """Everything waits and nothing can wake it. The message lists the tasks and timers that wait."""


class VirtualSelector(selectors.BaseSelector):
    """The real selector, asked without waiting wherever time can move instead."""

    def __init__(self, moment: Moment) -> None:
        self._real = selectors.DefaultSelector()
        self._moment = moment

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or timeout == 0:
            return ready
        sockets = len(self.get_map()) - 1  # the loop's own wake-up pipe is always there
        if sockets or self._moment.threads or self._moment.external:
            ready = self._real.select(REAL_PATIENCE)
            if not ready:
                self._moment.hang(f"nothing happened in {REAL_PATIENCE} s of real time")
            return ready
        self._moment.idle()
        return ready


class Moment:
    """The time of a virtual loop, and what keeps it from moving."""

    def __init__(self, start: float, *, autojump: bool) -> None:
        self.time = start
        self.autojump = autojump
        self.threads = 0
        self.external = 0
        self.loop: VirtualLoop | None = None
        self.problem: WouldHang | None = None
        self.thread_waiters: list[asyncio.Future[None]] = []

    def idle(self) -> None:
        """Nothing can run now: jump to the next timer, or say who waits for ever."""
        loop = self.loop
        if loop is None:
            return
        when = loop.next_timer()
        if when is None:
            self.hang("no timer is set")
        elif self.autojump or when <= self.time:
            self.time = max(self.time, when)
        else:
            self.hang(f"time stands still at {self.time} (autojump is off)")

    def hang(self, why: str) -> None:
        """End the run with a list of what waits."""
        if self.loop is not None:
            self.problem = WouldHang(f"everything waits, and {why}\n{describe(self.loop)}")
            self.loop.stop()


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop on a `Moment`'s time."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        super().__init__(VirtualSelector(moment))
        moment.loop = self

    def time(self) -> float:
        return self._moment.time

    @property
    def _clock_resolution(self) -> float:
        """The least that makes the loop fire a timer at its exact time, and none before."""
        return math.ulp(self._moment.time)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """The base class measures the real clock's; ours is exact."""

    def next_timer(self) -> float | None:
        """When the next timer that was not cancelled is due."""
        return min((handle.when() for handle in self.timers()), default=None)

    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are set and not cancelled."""
        scheduled = cast("list[asyncio.TimerHandle]", getattr(self, "_scheduled"))  # noqa: B009  # the loop's only list of timers
        return [handle for handle in scheduled if not handle.cancelled()]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # typeshed's *Ts
        future = super().run_in_executor(executor, func, *args)
        self._moment.threads += 1
        future.add_done_callback(self._thread_back)
        return future

    def _thread_back(self, _: object) -> None:
        self._moment.threads -= 1
        for waiter in self._moment.thread_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._moment.thread_waiters.clear()


def describe(loop: VirtualLoop) -> str:
    """The tasks and timers of a loop, one per line, for a person who wonders what hangs."""
    lines = [f"  task {task.get_name()!r} at {_where(task)}" for task in asyncio.all_tasks(loop)]
    lines += [f"  timer at {handle.when()}: {handle!r}" for handle in sorted(loop.timers())]
    return "\n".join(sorted(lines)) or "  (no task, no timer)"


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return repr(task.get_coro())
    frame = frames[-1]
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
