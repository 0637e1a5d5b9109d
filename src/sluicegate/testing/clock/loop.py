"""An event loop on virtual time.

`time()` is that of the `Moment`, so every timeout on the loop is virtual, in third-party code too.
The loop polls its selector with a timeout only when no callback is ready; the selector then
performs the act that `decide` returns. The rules are in `moment.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import selectors
from typing import TYPE_CHECKING, Any, cast

from .describe import describe
from .moment import Act, Holders, Moment, WouldHang, decide

if TYPE_CHECKING:
    from collections.abc import Callable
    from selectors import SelectorKey


class VirtualSelector(selectors.DefaultSelector):
    """A real selector, polled without waiting whenever time can move instead."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: VirtualLoop | None = None

    def serve(self, loop: VirtualLoop) -> None:
        """Move the time of `loop`, which must be fully constructed."""
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Return the ready sockets; if the loop would wait, move time first. One round per call."""
        loop = self._loop
        if loop is None:
            return super().select(timeout)
        # the loop's own wake-up pipe is always registered
        holders = loop.moment.holders(sockets=len(self.get_map()) - 1)
        came_true = loop.moment.look()
        events = super().select(0)
        if events:
            loop.moment.outside_event()
            return events
        loop.count_round()
        if timeout == 0 or came_true or not loop.move_time(holders):
            return events
        return self._wait(loop, holders)

    def _wait(self, loop: VirtualLoop, holders: Holders) -> list[tuple[SelectorKey, int]]:
        """Wait in real time for a thread or a socket, up to the clock's patience."""
        events = super().select(loop.moment.patience)
        if not events:
            loop.hang(
                f"no event in {loop.moment.patience} s of real time from {holders}, which "
                "keep time from moving automatically"
            )
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop on a `Moment`'s time."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        selector = VirtualSelector()
        super().__init__(selector)
        selector.serve(self)

    def time(self) -> float:
        """Virtual seconds."""
        return self.moment.time

    @property
    def _clock_resolution(self) -> float:
        """The smallest value that makes the loop fire timers at their exact times, none earlier."""
        return math.ulp(self.moment.time)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """Ignore the base class's value, measured on the real clock; this one is exact."""

    def timers(self) -> list[asyncio.TimerHandle]:
        """The pending timers."""
        return [handle for handle in self._heap() if not handle.cancelled()]

    def _heap(self) -> list[asyncio.TimerHandle]:
        return cast("list[asyncio.TimerHandle]", getattr(self, "_scheduled"))  # noqa: B009  # the loop's only list of timers

    def move_time(self, holders: Holders) -> bool:
        """Perform the act of `decide`; return whether the loop must wait in real time."""
        moment = self.moment
        heap = self._heap()  # the loop has just removed cancelled timers from its head
        move = moment.next_move()
        act, when = decide(
            heap[0].when() if heap else None, move, holders, autojump=moment.autojump
        )
        if act is Act.HANG:
            self.hang(
                f"time stands still at {moment.time} (autojump is off)"
                if heap
                else "no timer is set"
            )
        elif act is not Act.WAIT:
            moment.set_time(when)
            if act is Act.REACH and move is not None:
                move.done.set_result(None)
        return act is Act.WAIT

    def count_round(self) -> None:
        """Count one round without an outside event. Raises `WouldHang` after too many."""
        if self.moment.is_endless():
            self.moment.outside_event()
            raise WouldHang(
                f"after {self.moment.max_rounds} rounds the loop is still busy: does a task yield "
                "forever, or a timer restart itself "
                f"forever? The time is {self.time()}\n{describe(self, self.timers())}"
            )

    def hang(self, why: str) -> None:
        """Fail the waits for a predicate, or else the run, with a list of all waiting tasks."""
        message = f"everything waits, and {why}\n{describe(self, self.timers())}"
        watches = [watch for watch in self.moment.watches if not watch.done.done()]
        if not watches:
            raise WouldHang(message)
        for watch in watches:
            watch.done.set_exception(WouldHang(f"{watch.predicate!r} is still false: {message}"))

    def run_in_executor(  # type: ignore[override]  # typeshed's *Ts
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call the base class; time does not jump until the call has ended, cancelled or not."""
        self._check_closed()  # type: ignore[attr-defined]  # as the base class does
        call: concurrent.futures.Future[Any] = (executor or self._default_pool()).submit(
            func, *args
        )
        self.moment.hold(threads=1)
        result: asyncio.Future[Any] = asyncio.wrap_future(call, loop=self)
        # registered after the base class's callback, so the result is already scheduled by then
        call.add_done_callback(lambda _: self.let_go(threads=1))
        return result

    def _default_pool(self) -> concurrent.futures.Executor:
        self._check_default_executor()  # type: ignore[attr-defined]  # as the base class does
        pool = cast("concurrent.futures.Executor | None", getattr(self, "_default_executor"))  # noqa: B009  # the base class's
        if pool is None:
            fresh = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="asyncio")
            self.set_default_executor(fresh)
            return fresh
        return pool

    def let_go(self, *, threads: int = 0, external: int = 0) -> None:
        """Release holders of the time, and wake the loop to decide again. Thread-safe."""
        self.moment.hold(threads=-threads, external=-external)
        try:
            self.call_soon_threadsafe(_nothing)
        except RuntimeError:
            pass  # the loop is closed, without waiters


def _nothing() -> None:
    """Only wake the loop."""
