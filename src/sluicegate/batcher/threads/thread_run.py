"""One run of a `BlockingBatcher` from start to shutdown: an `InboxBatcher` and its thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..._core.errors import BatcherBroken, ClosedError
from ..._core.outcome import Tally
from ..._core.runtime.loop_thread import LoopThread
from ..._core.runtime.own_context import own_context
from ..report import ShutdownReport

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .inbox_batcher import InboxBatcher

T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger("sluicegate.batcher")

SLACK = 2.0  # seconds after a shutdown's deadline before a silent loop counts as stuck


class ThreadRun(Generic[T]):
    """A batcher with an inbox, and its thread. `make` builds the batcher."""

    def __init__(self, make: Callable[[Callable[[], object]], InboxBatcher[T]]) -> None:
        self.batcher = make(self._wake)
        self._thread: LoopThread | None = None

    def _wake(self) -> None:
        if self._thread is not None:
            self._thread.call_soon(self.batcher.take_in)

    @property
    def has_thread(self) -> bool:
        """Whether a thread has been started, and not abandoned."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread and open the batcher on it. If this is interrupted, call `abandon`."""
        batcher = self.batcher
        thread = LoopThread(
            f"batcher {batcher.name!r}", logger=logger, context=own_context(), on_end=batcher.shut
        )
        self._thread = (
            thread  # before it lends room, since a thread that fills the room wakes this loop
        )
        thread.start(batcher.open, lambda: batcher.shut_down(batcher.deadline, admit_waiting=False))

    def abandon(self) -> None:
        """Make the thread shut the batcher down and end; return immediately."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.abandon()

    def now(self) -> float:
        """Return the loop's monotonic time. Raises `ClosedError` without a running thread."""
        if self._thread is None:
            raise ClosedError(f"batcher {self.batcher.name!r} has ended")
        return self._thread.loop.time()

    def wait(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the loop, and block. Raises `ClosedError` without a running thread."""
        if self._thread is None:
            raise ClosedError(f"batcher {self.batcher.name!r} has ended")
        return self._thread.ask(work)

    def ask(self, question: Callable[[], R]) -> R:
        """Call a function on the loop, or directly if this is the loop's thread or none runs."""
        thread = self._thread
        if thread is None or thread.is_this:
            return question()
        try:
            return thread.call(question)
        except ClosedError:  # it has just ended
            return question()

    def shutdown(self, seconds: float, *, admit_waiting: bool) -> ShutdownReport[T]:
        """Shut the batcher down, end the thread. Raises `BatcherBroken` if its loop is stuck."""
        thread, batcher = self._thread, self.batcher
        if thread is None:  # a forked child that has not used its batcher
            name = batcher.name
            return ShutdownReport(name=name, tally=Tally(), seconds=0.0, unsent=(), unknown=())
        try:
            report = thread.ask(
                lambda: batcher.shut_down(seconds, admit_waiting=admit_waiting), seconds + SLACK
            )
        except TimeoutError:
            message = (
                f"the loop of batcher {batcher.name!r} is stuck: a call blocks it; a sink that "
                "blocks must be a plain function, which runs in its own thread"
            )
            raise BatcherBroken(message) from None
        except ClosedError:
            if batcher.report is None:
                raise
            report = batcher.report  # another thread's shutdown has just ended
        thread.end()
        return report
