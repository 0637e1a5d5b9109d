"""The life of an open batcher, from opening to its report.

new -> opening -> open -> closing -> closed; a forked child's copy is `forked`. A broken batcher
that is open accepts no items, and must still be shut down. A batcher that opens its sink lazily is
open, accepts items, launches nothing, and is shown as `opening`.
"""

from __future__ import annotations

import contextvars
from threading import get_ident
from typing import TYPE_CHECKING

from .._core.classify import caused
from .._core.clock import LoopClock, Signal, wait_until
from .._core.errors import BatcherBroken, ClosedError, ConfigError, ForkedError
from .._core.runtime import process_fork
from .._core.runtime.loops import running_loop
from .._core.text import repr_of

if TYPE_CHECKING:
    import asyncio

    from .._core.clock import Clock


class Lifecycle:
    """The state of a batcher and of its shutdown."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.state = "new"
        self.accepting = True
        self.admitting = False
        """Whether a closing batcher still admits producers that were already waiting."""
        self.broken: BaseException | None = None
        self.launches = True
        """Whether batches may be launched: it is not broken, and its sink is open."""
        self.stopping = False
        self.gave_up = False
        """Whether queued items are returned unsent."""
        self.deadline: float | None = None
        """The time at which a shutdown cuts writes."""
        self.throttled_until = 0.0
        self.loop: asyncio.AbstractEventLoop
        """The loop on which it was opened."""
        self.context: contextvars.Context
        """The context in which it was opened."""
        self._thread = 0
        self._stop_signal = Signal()

    @property
    def shown_state(self) -> str:
        """The state as `stats()` shows it."""
        if self.state != "open" or self.launches:
            return self.state
        return "opening" if self.broken is None else "broken"

    @property
    def has_loop(self) -> bool:
        """Whether its clock can be read."""
        return self.state == "opening" or self.is_running

    @property
    def is_running(self) -> bool:
        """Whether it is open or closing."""
        return self.state in {"open", "closing"}

    @property
    def takes_items(self) -> bool:
        """Whether it is open and accepts items."""
        return self.state == "open" and self.accepting

    # -- checks ------------------------------------------------------------------------------------

    def check_here(self) -> None:
        """Raise unless this is the batcher's own process and loop."""
        if process_fork.check() or self.state == "forked":
            raise self._forked_error()
        if self.is_running and not self._is_on_its_loop and running_loop() is not self.loop:
            raise ConfigError(
                f"batcher {self.name!r} is open on another event loop, and may be used only "
                "there; from another thread, use a BlockingBatcher, or "
                "asyncio.run_coroutine_threadsafe(batcher.add(item), loop)"
            )

    def _forked_error(self) -> ForkedError:
        return ForkedError(
            f"batcher {self.name!r} was opened by the parent of this forked process; make a "
            "new Batcher here (its sink may be used again)"
        )

    @property
    def _is_on_its_loop(self) -> bool:
        """Whether its loop runs in this thread; much cheaper than a query of the running loop."""
        return self._thread == get_ident() and self.loop.is_running()

    def check_entered(self) -> None:
        """Raise unless it was opened."""
        if self.state in {"new", "opening"}:
            raise ClosedError(f"batcher {self.name!r} is not open: use `async with batcher:`")

    def check_open(self) -> None:
        """Raise unless it accepts items here."""
        if process_fork.check():
            raise self._forked_error()
        if self.accepting and self.state == "open" and self._is_on_its_loop:
            return
        self.check_here()
        self.check_entered()
        if not self.accepting:
            raise self.closed_error()

    def closed_error(self) -> ClosedError:
        """Return the error for items added too late."""
        if self.broken is None:
            return ClosedError(f"batcher {self.name!r} is closed and takes no more items")
        message = f"batcher {self.name!r} has stopped after a failure: {repr_of(self.broken)}"
        return caused(BatcherBroken(message), self.broken)

    # -- changes -----------------------------------------------------------------------------------

    def enter(self, state: str) -> None:
        """Change the state."""
        self.state = state

    def open_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to open it on this loop. Raises the clock's error if that runs another one."""
        self.clock.call_at(self.clock.now(), _nothing).cancel()
        self.loop = loop
        self.context = contextvars.copy_context()
        self._thread = get_ident()
        if isinstance(self.clock, LoopClock):
            self.clock = LoopClock(loop)  # a thread that scrapes metrics can also read it
        self.state = "opening"

    def hold_launches(self) -> None:
        """Launch no batch until `let_launch`."""
        self.launches = False

    def let_launch(self) -> None:
        """Launch batches from now on, unless it is broken."""
        self.launches = self.broken is None

    def stop_accepting(self, *, admit_waiting: bool = False) -> None:
        """Accept no more items; with `admit_waiting`, except from producers that already wait."""
        self.accepting = False
        self.admitting = admit_waiting

    def give_up(self) -> None:
        """Return queued items from now on."""
        self.admitting = False
        self.gave_up = True

    def begin_stop(self) -> None:
        """End every backoff with an immediate attempt, and shorten later ones."""
        self.stopping = True
        self._stop_signal.fire()

    def plan_cut(self, deadline: float) -> None:
        """Set the time at which a shutdown will cut writes."""
        self.deadline = deadline

    def move_cut(self, deadline: float) -> None:
        """Cut writes earlier than planned, and notify backoffs."""
        self.deadline = deadline
        self._stop_signal.fire()

    def breaks(self, error: BaseException) -> None:
        """Note the error that broke it."""
        self.broken = error
        self.launches = False

    def throttled(self, until: float) -> None:
        """Note the destination's throttling."""
        self.throttled_until = max(self.throttled_until, until)

    async def pause(self, until: float, *signals: Signal, through_stop: bool) -> None:
        """Wait until a time, a signal, or a shutdown unless `through_stop`."""
        stop = () if through_stop else (self._stop_signal,)
        await wait_until(self.clock, until, *stop, *signals)


def _nothing() -> None: ...
