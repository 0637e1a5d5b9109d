"""Time as an argument.

Only this module reads the operating system's time, sleeps or sets timers. The default clock
delegates to the running loop, so a loop with virtual time (that of `sluicegate.testing.FakeClock`)
makes everything above it virtual as well.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class TimerHandle(Protocol):
    """A scheduled call, returned by `Clock.call_at`."""

    def cancel(self) -> None:
        """Cancel the call; no effect if it has already been made."""


class Clock(Protocol):
    """The source of time. All durations are float seconds."""

    def now(self) -> float:
        """Return monotonic seconds, on the scale of the running loop's `time()`."""
        ...

    def wall_time(self) -> float:
        """Return seconds since the epoch, for human-readable records."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend for `seconds`; 0 lets other tasks run once."""

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` once, from the loop, when `now()` has reached `when`."""
        ...

    def timeout_at(self, when: float | None) -> asyncio.Timeout:
        """Return an `asyncio.Timeout` that expires at `when`; with `None`, never."""
        ...


class LoopClock:
    """The clock of `loop`, by default the running one; outside a loop, `now` needs `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def now(self) -> float:
        """Return the loop's monotonic time, in seconds."""
        return (self._loop or asyncio.get_running_loop()).time()

    def wall_time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Suspend for `seconds`; cancellation leaves nothing behind."""
        await asyncio.sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` once when the loop's time has reached `when`."""
        return (self._loop or asyncio.get_running_loop()).call_at(when, callback)

    def timeout_at(self, when: float | None) -> asyncio.Timeout:
        """Return an `asyncio.Timeout` that expires at `when`."""
        return asyncio.timeout_at(when)

    def __repr__(self) -> str:
        return "LoopClock()"


LOOP_CLOCK = LoopClock()


class Signal:
    """Wakes all its waiters in order; holds no reference to a loop while it has no waiters."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: dict[asyncio.Future[None], None] = {}

    def join(self, waiter: asyncio.Future[None]) -> None:
        self.waiters[waiter] = None

    def leave(self, waiter: asyncio.Future[None]) -> None:
        self.waiters.pop(waiter, None)

    def fire(self) -> None:
        """Wake the current waiters."""
        if self.waiters:
            for waiter in list(self.waiters):
                _wake(waiter)


class CountedSignal(Signal):
    """A signal with a counter, so that a waiter can detect that it fired between two waits."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def fire(self) -> None:
        """Wake the current waiters, and increment the counter."""
        self.count += 1
        super().fire()


async def wait_until(clock: Clock, until: float, *signals: Signal) -> None:
    """Suspend until `until` (may be infinite) or a signal; cancellation leaves nothing behind."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(until, lambda: _wake(waiter)) if until < math.inf else None
    for signal in signals:
        signal.join(waiter)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        for signal in signals:
            signal.leave(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
