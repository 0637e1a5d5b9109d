"""A deadline that can only move earlier, and limits waits for conditions.

1. A wait ends when its condition holds or its part of the time has passed. Fire `changed`, or call
   `wake`, after a change that affects conditions.
2. The last part of the time is reserved for clean-up: `at(1)` is its start, `at(0.5)` its middle,
   `at(0)` the deadline. Moving the deadline never lengthens the reserve.
3. Cancelling a wait means *now*: the deadline becomes the current time, and the wait ends
   immediately. The cancellation is swallowed: `asyncio.run` cancels every task when it ends, and a
   shutdown must still finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any

from ..clock import Signal, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..clock import Clock

RESERVE = 0.2  # the reserve's share of the time


class Countdown:
    """A deadline in `seconds`; the last fifth (at most `longest_reserve`) is a reserve.

    `on_move` is called with `at(1)` after each move.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: float,
        *,
        longest_reserve: float = math.inf,
        on_move: Callable[[float], object] = lambda _: None,
        changed: Signal | None = None,
    ) -> None:
        self._clock = clock
        self._on_move = on_move
        self._changed = Signal() if changed is None else changed
        self.began = clock.now()
        self.deadline = self.began + seconds
        self.reserve = min(RESERVE * seconds, longest_reserve)

    def at(self, part: float) -> float:
        """Return the start of this part of the reserve: 1 is all of it, 0 is the deadline."""
        return self.deadline - part * self.reserve

    def hasten(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now, if that is earlier."""
        when = self._clock.now() + seconds
        if when < self.deadline:
            self.deadline = when
            self.reserve = min(RESERVE * seconds, self.reserve)
            self._on_move(self.at(1))
            self.wake()

    def wake(self) -> None:
        """Make all waits check their conditions again."""
        self._changed.fire()

    async def until(
        self, condition: Callable[[], bool], *, part: float = 0, latest: float = math.inf
    ) -> None:
        """Suspend until the condition holds, at most until `at(part)` and `latest`."""
        while not condition() and self._clock.now() < (when := min(self.at(part), latest)):
            try:
                await wait_until(self._clock, when, self._changed)
            except asyncio.CancelledError:
                self.hasten(0.0)

    async def ends(
        self, task: asyncio.Task[Any], *, part: float = 0, latest: float = math.inf
    ) -> bool:
        """Wait for the task; cancel it if it is late. Return whether it ended by itself in time."""
        task.add_done_callback(lambda _: self.wake())
        await self.until(task.done, part=part, latest=latest)
        await self.settle([task])
        if not task.done():
            task.cancel()
            await self.settle([task])
        return task.done() and not task.cancelled()

    @staticmethod
    async def settle(tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Let tasks end if they can do so without waiting, even when no time is left."""
        if any(not task.done() for task in tasks):
            with contextlib.suppress(asyncio.CancelledError):  # swallowed: later waits are short
                await asyncio.wait(tasks, timeout=0)
