"""State that a Spark worker process keeps between tasks: an event loop on a thread, and open sinks.

1. Workers are forked from a daemon and then reused. So nothing is created at import, and a child
   does not use objects of its parent.
2. A sink stays open from task to task. It is closed when another sink is opened and no task uses
   it, so that a long session accumulates neither connections nor locked files.
3. PySpark collects garbage after every task. All that is there when a sink is open, most of it
   modules, is left out of this: it takes longer than a small task.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import sys
import threading
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.opening import opened
from ..._core.runtime.loop_thread import LoopThread
from ..description import load

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager

    from ..._core.sink import Sink

R = TypeVar("R")

CLOSING_SECONDS = 5.0
_ELSEWHERE = (
    f"the package is missing on an executor, whose Python is {sys.executable}. If the driver has "
    "another one, set PYSPARK_PYTHON before Spark starts. Otherwise install it there, or send an "
    "environment with spark.archives; --py-files cannot carry compiled code"
)

logger = logging.getLogger("sluicegate.spark")


class _OpenSink:
    """An open sink and the number of tasks that use it."""

    def __init__(self, sink: Sink[Any]) -> None:
        self.sink = sink
        self._users = 0
        self._open = AsyncExitStack()

    @property
    def is_idle(self) -> bool:
        """Whether no task uses it."""
        return not self._users

    async def open(self) -> None:
        """Open the sink."""
        await self._open.enter_async_context(opened(self.sink))

    async def close(self) -> None:
        """Close the sink."""
        await self._open.aclose()

    def acquire(self) -> None:
        """Add a task."""
        self._users += 1

    def release(self) -> None:
        """Remove a task."""
        self._users -= 1


class Worker:
    """The event loop and the open sinks of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._thread = LoopThread("sluicegate spark", logger=logger)
        self._thread.start()
        self._sinks: dict[bytes, _OpenSink] = {}
        self._lock = asyncio.Lock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        return self._thread.loop

    def start(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Start a coroutine on the loop, from any thread."""
        return self._thread.spawn(work)

    @contextmanager
    def using(self, description: bytes) -> Generator[Sink[Any]]:
        """Provide the open sink of a pickled description; close other idle sinks first.

        Blocks while the sink opens.
        """
        used = self.start(self._acquire(description)).result()
        try:
            yield used.sink
        finally:
            used.release()

    @contextmanager
    def enter(self, context: AbstractAsyncContextManager[R]) -> Generator[R]:
        """Enter an async context on the loop, for a thread that blocks meanwhile."""
        value = self.start(_enter(context)).result()
        try:
            yield value
        except BaseException as error:
            if not self.start(_leave(context, error)).result():
                raise
        else:
            self.start(_leave(context, None)).result()

    async def _acquire(self, description: bytes) -> _OpenSink:
        async with self._lock:
            used = self._sinks.get(description)
            if used is None:
                await self._close_idle()
                used = _OpenSink(load(description))
                try:
                    await used.open()
                except ImportError as error:
                    error.add_note(_ELSEWHERE)
                    raise
                self._sinks[description] = used
                gc.unfreeze()  # what a closed sink has left
                gc.collect()
                gc.freeze()
            used.acquire()
            return used

    async def _close_idle(self) -> None:
        idle = [description for description, one in self._sinks.items() if one.is_idle]
        for description in idle:
            await self._sinks.pop(description).close()

    async def _close_all(self) -> None:
        for one in self._sinks.values():
            await one.close()

    def close(self) -> None:
        """Close the sinks and end the loop; does nothing in a forked child."""
        if os.getpid() != self.pid:
            return
        try:
            self.start(self._close_all()).result(CLOSING_SECONDS)
        finally:
            self._thread.end(CLOSING_SECONDS)


async def _enter(context: AbstractAsyncContextManager[R]) -> R:
    return await context.__aenter__()


async def _leave(
    context: AbstractAsyncContextManager[Any], error: BaseException | None
) -> bool | None:
    return await context.__aexit__(
        None if error is None else type(error),
        error,
        None if error is None else error.__traceback__,
    )


_worker: Worker | None = None
_making = threading.Lock()


def worker() -> Worker:
    """Return this process's worker, created at the first use."""
    global _worker  # noqa: PLW0603  # one per process
    with _making:
        if _worker is None or _worker.pid != os.getpid():
            _worker = Worker()
            atexit.register(_worker.close)
        return _worker
