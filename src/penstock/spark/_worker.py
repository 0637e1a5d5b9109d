"""What a worker process of Spark keeps from one task to the next: an event loop on a thread of its own, and the sinks that are open there.

Workers are forked from a daemon and then reused, so nothing is made at import, and what a parent made is not used by its child.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
import pickle
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from .._core.opening import opened

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

    from .._core.sink import Sink

R = TypeVar("R")

CLOSING_SECONDS = 5.0


class Worker:
    """The loop of this process, and its open sinks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock spark", daemon=True)
        self._thread.start()
        self._sinks: dict[str, Sink[Any]] = {}
        self._open = AsyncExitStack()
        self._lock = asyncio.Lock()

    def start(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run something on the loop; from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def sink(self, description: bytes) -> Sink[Any]:
        """The sink of a pickled description, opened; kept open for the tasks to come."""
        digest = hashlib.sha256(description).hexdigest()
        async with self._lock:
            if digest not in self._sinks:
                sink: Sink[Any] = pickle.loads(description)  # noqa: S301  # made by the driver of this very job
                await self._open.enter_async_context(opened(sink))
                self._sinks[digest] = sink
        return self._sinks[digest]

    def close(self) -> None:
        """Close the sinks and the loop; in the process that made them."""
        if os.getpid() != self.pid:
            return
        try:
            self.start(self._open.aclose()).result(CLOSING_SECONDS)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(CLOSING_SECONDS)


_worker: Worker | None = None
_making = threading.Lock()


def worker() -> Worker:
    """This process's worker, made at the first use."""
    global _worker  # noqa: PLW0603  # one per process
    with _making:
        if _worker is None or _worker.pid != os.getpid():
            _worker = Worker()
            atexit.register(_worker.close)
        return _worker
