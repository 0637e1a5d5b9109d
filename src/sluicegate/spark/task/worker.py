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
from collections import Counter
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.opening import opened
from ..._core.runtime.loop_thread import LoopThread
from ..description import ADVICE, load

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager

    from ..._core.sink import Sink

R = TypeVar("R")

CLOSING_SECONDS = 5.0
logger = logging.getLogger("sluicegate.spark")


class Worker:
    """The event loop and the open sinks of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._thread = LoopThread("sluicegate spark", logger=logger)
        self._thread.start()
        self._sinks: dict[bytes, tuple[Sink[Any], AsyncExitStack]] = {}
        self._users: Counter[bytes] = Counter()
        """The number of tasks that use each sink."""
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
        sink = self.start(self._acquire(description)).result()
        try:
            yield sink
        finally:
            self._users[description] -= 1

    @contextmanager
    def enter(self, context: AbstractAsyncContextManager[R]) -> Generator[R]:
        """Enter an async context on the loop, for a thread that blocks meanwhile."""
        value = self.start(context.__aenter__()).result()
        try:
            yield value
        except BaseException as error:
            if not self.start(context.__aexit__(type(error), error, error.__traceback__)).result():
                raise
        else:
            self.start(context.__aexit__(None, None, None)).result()

    async def _acquire(self, description: bytes) -> Sink[Any]:
        async with self._lock:
            if description not in self._sinks:
                await self._close_idle()
                sink, closing = load(description), AsyncExitStack()
                try:
                    await closing.enter_async_context(opened(sink))
                except ImportError as error:
                    error.add_note(ADVICE.format(module=error.name, python=sys.executable))
                    raise
                self._sinks[description] = sink, closing
                gc.unfreeze()  # what a closed sink has left
                gc.collect()
                gc.freeze()
            self._users[description] += 1
            return self._sinks[description][0]

    async def _close_idle(self) -> None:
        for description in [each for each in self._sinks if not self._users[each]]:
            await self._sinks.pop(description)[1].aclose()
            del self._users[description]

    async def _close_all(self) -> None:
        for _, closing in self._sinks.values():
            await closing.aclose()

    def close(self) -> None:
        """Close the sinks and end the loop; does nothing in a forked child."""
        if os.getpid() != self.pid:
            return
        try:
            self.start(self._close_all()).result(CLOSING_SECONDS)
        finally:
            self._thread.end(CLOSING_SECONDS)


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
