"""A trial of the sink on the driver before the job, so that its errors appear once and early.

1. A copy is opened, made from the pickled description as on the executors. It has its own loop in a
   separate thread, so that a caller may have a running loop, and a sink that is open elsewhere is
   not affected.
2. An open sink knows its destination, so it is checked again.
3. Nothing is written.
4. A request to stop ends the trial at once; its thread is a daemon, so an opening that ignores its
   cancellation does not keep the process alive.
"""

from __future__ import annotations

import logging
import pickle
from concurrent.futures import wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..._core.errors import SinkError
from ..._core.opening import opened
from ..._core.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from threading import Event

    from ..._core.sink import Sink

logger = logging.getLogger("sluicegate.spark")

LOOK_SECONDS = 0.2
"""Interval between looks at a request to stop, in seconds."""
_STOP: ContextVar[Event | None] = ContextVar("_STOP", default=None)

NOTE = (
    "sluicegate opened the sink on the driver to check it; if only the executors can reach the "
    "destination, pass check=False"
)


class WriteStopped(Exception):
    """The write was stopped before it began; nothing was written."""


@contextmanager
def stoppable(stop: Event | None) -> Generator[None]:
    """Let `stop` end the trials of this thread inside, with `WriteStopped`."""
    token = _STOP.set(stop)
    try:
        check_stop()
        yield
    finally:
        _STOP.reset(token)


def check_stop() -> None:
    """Raise `WriteStopped` if this thread's write is to stop."""
    stop = _STOP.get()
    if stop is not None and stop.is_set():
        raise WriteStopped


def try_out(description: bytes, check: Callable[[Sink[Any]], None]) -> None:
    """Open the sink, `check` it and close it again; blocks.

    Raises the errors of opening and of `check`, and `WriteStopped`.
    """
    thread = LoopThread("sluicegate check", logger=logger)
    thread.start()
    trial = thread.spawn(_opened(description, check))
    try:
        while not wait([trial], LOOK_SECONDS).done:
            check_stop()
        trial.result()
        check_stop()
    except (SinkError, OSError) as error:
        error.add_note(NOTE)
        raise
    finally:
        is_over = trial.done()
        trial.cancel()
        thread.end(None if is_over else LOOK_SECONDS)


async def _opened(description: bytes, check: Callable[[Sink[Any]], None]) -> None:
    sink: Any = pickle.loads(description)  # noqa: S301  # made by this process
    async with opened(sink):
        check(sink)
