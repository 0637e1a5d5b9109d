"""What a worker process of Spark keeps from one task to the next: an event loop on a thread of its
own, and the sinks that are open there.

1. Workers are forked from a daemon and then reused, so nothing is made at import, and what a parent
   made is not used by its child.
2. A sink stays open from one task to the next. It is closed when another one is opened and no task
   uses it, so that the writes of a long session leave neither connections nor locked files behind.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.opening import opened
from ..values.travel import load

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager

    from ..._core.sink import Sink

R = TypeVar("R")

CLOSING_SECONDS = 5.0


class _Kept:
    """A sink that is open here, and how many tasks use it."""

    def __init__(self, sink: Sink[Any]) -> None:
        self.sink = sink
        self.users = 0
        self.open = AsyncExitStack()


class Worker:
    """The loop of this process, and its open sinks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="penstock spark", daemon=True
        )
        self._thread.start()
        self._kept: dict[bytes, _Kept] = {}
        self._lock = asyncio.Lock()

    def start(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run something on the loop; from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    @contextmanager
    def using(self, description: bytes) -> Generator[Sink[Any]]:
        """The sink of a pickled description, open; other sinks that nobody uses are closed first.
        Blocks while it is being opened.
        """
        kept = self.start(self._taken(description)).result()
        try:
            yield kept.sink
        finally:
            kept.users -= 1

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[R]) -> Generator[R]:
        """A context of the loop, for a thread that blocks meanwhile."""
        value = self.start(_enter(context)).result()
        try:
            yield value
        except BaseException as error:
            if not self.start(_leave(context, error)).result():
                raise
        else:
            self.start(_leave(context, None)).result()

    async def _taken(self, description: bytes) -> _Kept:
        async with self._lock:
            kept = self._kept.get(description)
            if kept is None:
                await self._close_idle()
                kept = _Kept(load(description))
                await kept.open.enter_async_context(opened(kept.sink))
                self._kept[description] = kept
            kept.users += 1
            return kept

    async def _close_idle(self) -> None:
        for description in [
            description for description, kept in self._kept.items() if not kept.users
        ]:
            await self._kept.pop(description).open.aclose()

    async def _close_all(self) -> None:
        for kept in self._kept.values():
            await kept.open.aclose()

    def close(self) -> None:
        """Close the sinks and the loop; in the process that made them."""
        if os.getpid() != self.pid:
            return
        try:
            self.start(self._close_all()).result(CLOSING_SECONDS)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(CLOSING_SECONDS)
            if not self._thread.is_alive():
                self.loop.close()


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
    """This process's worker, made at the first use."""
    global _worker  # noqa: PLW0603  # one per process
    with _making:
        if _worker is None or _worker.pid != os.getpid():
            _worker = Worker()
            atexit.register(_worker.close)
        return _worker
