"""Opening a batcher's sinks: immediately, until a timeout, or in the background.

1. `open="eager"`: entering opens the sinks. Without `open_timeout` there is one attempt. With it,
   an unavailable destination is retried until it expires; any other error is raised immediately.
2. `open="lazy"`: entering returns immediately, and a task opens the sink. Meanwhile items are
   accepted and no batch is launched. Every error is reported and retried, since an operator may
   repair a missing table or a wrong password; only `open_timeout`, if there is one, breaks the
   batcher.
3. A destination that cannot be opened is an outage: it is logged immediately, every minute, and
   once more when it has ended, and reported to observers and `stats()`.
4. Waits double up to `LONGEST`, less a fraction that differs between batchers. A shutdown ends the
   wait with an immediate attempt; later ones follow after shortened waits, for as long as another
   one fits before the cut.
5. The last resort is opened first, with one attempt.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .._core.classify import classified
from .._core.delivery.host import Condition, DestinationState
from .._core.delivery.pacing import next_try
from .._core.errors import ConfigError, ErrorClass, StoppedError, TransientError
from .._core.logs import for_log
from .._core.opening import opened
from .._core.runtime.loops import Exit, exit_later
from .._core.sink import classifier_of, walk
from .log import own_context

if TYPE_CHECKING:
    from .dispatch import Dispatcher

FIRST, LONGEST = 0.1, 5.0
"""The first wait between two attempts, which doubles, and the longest one, in seconds."""
_TEMPORARY = frozenset(
    {ErrorClass.UNAVAILABLE, ErrorClass.TRANSIENT, ErrorClass.DEADLOCK, ErrorClass.THROTTLE}
)


class Opener:
    """Opens the sinks of one batcher, and closes them."""

    def __init__(self, dispatcher: Dispatcher[Any]) -> None:
        self._dispatcher = dispatcher
        self._lifecycle = dispatcher.lifecycle
        self._setup = dispatcher.setup
        self._classifiers = [classifier_of(part) for part in walk(dispatcher.setup.sink)]
        self._share = 0.5 + uuid4().int / 2**129
        """This batcher's fraction of each wait, so that many processes do not retry simultaneously.
        """
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._until = math.inf
        """The time at which `open_timeout` expires."""
        self._began = 0.0
        self._tries = 0
        self._last_error = ""
        self._is_open = False
        self._is_closing = False

    @property
    def is_lazy(self) -> bool:
        """Whether the batcher opens its sink in the background."""
        return self._setup.open == "lazy"

    @property
    def never_opened(self) -> str:
        """The reason why the sink was never open, on one line without secrets; empty if it was
        open.
        """
        if self._is_open:
            return ""
        return self._last_error or "no try to open it has ended"

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """The task that opens in the background, while it runs."""
        return [] if self._task is None or self._task.done() else [self._task]

    async def open(self) -> None:
        """Open the sinks, without the sink itself if it is opened lazily; on an error leave none
        open.
        """
        self._began = self._lifecycle.clock.now()
        if self._setup.open_timeout is not None:
            self._until = self._began + self._setup.open_timeout
        try:
            if self._setup.last_resort is not None:
                await self._stack.enter_async_context(opened(self._setup.last_resort))
            if not self.is_lazy:
                await self._until_open()
        except BaseException:
            self._dispatcher.monitor.close()
            await self._stack.aclose()
            raise

    def entered(self) -> None:
        """If lazy, begin to open in the background: no batch is launched before that has ended."""
        if not self.is_lazy:
            return
        self._lifecycle.hold_launches()
        loop, name = asyncio.get_running_loop(), f"sluicegate opening {self._setup.name}"
        self._task = loop.create_task(self._open_lazily(), name=name, context=own_context())

    def cancel(self) -> None:
        """Stop opening in the background."""
        self._is_closing = True
        for task in self.running:
            task.cancel()

    async def close(self) -> None:
        """Close the open sinks, once the task has ended."""
        self.cancel()
        if self.running:
            await asyncio.wait(self.running)
        await self._stack.aclose()

    # -- tries -------------------------------------------------------------------------------------

    async def _open_lazily(self) -> None:
        dispatcher = self._dispatcher
        try:
            await self._until_open()
        except Exception as error:
            cut = self._lifecycle.deadline
            if self._lifecycle.stopping and cut is not None and cut <= self._until:
                return  # the shutdown's deadline is earlier, and its report has the reason
            dispatcher.break_down(error)
        except Exit as error:
            dispatcher.break_down(error)
            exit_later(error)
        except asyncio.CancelledError:
            if not self._is_closing:  # cancelled by the program, as by `asyncio.run` at its end
                dispatcher.break_down(StoppedError("the task that opens the sink was cancelled"))
            raise
        else:
            self._lifecycle.let_launch()
            if self._lifecycle.state == "open":
                name = self._setup.name
                dispatcher.observers.tell(lambda observer: observer.on_state(name, "open"))
        dispatcher.notify()

    async def _until_open(self) -> None:
        """Retry until the sink is open. Raises the last error."""
        clock = self._lifecycle.clock
        while True:
            began = clock.now()
            try:
                await self._try(began)
            except Exception as error:
                now = clock.now()
                at = self._next_at(now, now - began) if self._tell(error) else None
                if at is None:
                    raise
            else:
                self._is_open = True
                self._dispatcher.monitor.reported(self, None)
                return
            await self._lifecycle.pause(at, through_stop=False)

    async def _try(self, now: float) -> None:
        """Open the sink once, within `flush_timeout` if a failed attempt is retried."""
        self._tries += 1
        limit = min(self._until, now + self._setup.limits.stretch) if self._repeats else None
        timeout = self._lifecycle.clock.timeout_at(limit)
        try:
            async with timeout, AsyncExitStack() as fresh:
                await fresh.enter_async_context(opened(self._setup.sink))
                self._stack.push_async_callback(fresh.pop_all().aclose)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            message = f"opening the sink did not end within {(limit or now) - now:g} s"
            raise TransientError(message) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self._repeats or task is None or task.cancelling():
                raise
            raise TransientError("the sink cancelled its own opening") from error

    @property
    def _repeats(self) -> bool:
        return self.is_lazy or self._setup.open_timeout is not None

    def _tell(self, error: Exception) -> bool:
        """Report a failed attempt; return whether another one follows, if there is time."""
        kind = classified(error, *self._classifiers)
        is_temporary = kind in _TEMPORARY and not isinstance(error, ConfigError)
        if not self.is_lazy and (self._setup.open_timeout is None or not is_temporary):
            return False
        self._last_error = for_log(error)
        state = DestinationState.UNAVAILABLE if is_temporary else DestinationState.REFUSED
        reason = Condition.after(state, error)
        monitor, text = self._dispatcher.monitor, f"the sink cannot be opened: {reason.reason}"
        monitor.heard([error])
        if not isinstance(error, ConfigError):
            self._dispatcher.books.unlisted.look_at([error])
        monitor.reported(self, Condition(state, text, reason.repair))
        return True

    def _next_at(self, now: float, lasted: float) -> float | None:
        """Return the time of the next attempt; `None` if none fits."""
        cut = self._lifecycle.deadline if self._lifecycle.stopping else None
        until = self._until if cut is None else min(self._until, cut)
        wait = min(LONGEST, FIRST * 2.0 ** min(self._tries - 1, 16))
        return next_try(now, now + self._share * wait, until, lasts=lasted)
