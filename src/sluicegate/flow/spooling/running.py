"""An open spool: the loop's side of its files.

All SQLite calls run in one thread. Requests that arrive while it is busy are stored together, by
the next call: a group commit.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.clock import Signal
from ..._core.errors import ForkedError, RefusedError, TransientError
from ..._core.logs import for_log
from ..._core.text import text_of
from .ranges import ranges_of
from .segment import code_of
from .store import Store, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..._core.clock import Clock, TimerHandle
    from .segment import Encoded, Extent, Item

R = TypeVar("R")
_REFUSALS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file or its file system is read-only",
    sqlite3.SQLITE_PERM: "the file may not be written",
    sqlite3.SQLITE_CANTOPEN: "a file cannot be created",
    sqlite3.SQLITE_IOERR: "the disk returns errors",
    sqlite3.SQLITE_CORRUPT: "a file is damaged",
    sqlite3.SQLITE_NOTADB: "a file is damaged",
}


class RunningSpool:
    """The files of a spool, used by one loop."""

    def __init__(self, store: Store, clock: Clock, seal_every: float) -> None:
        self.store = store
        self._clock = clock
        self._seal_every = seal_every
        self._sealing: TimerHandle | None = None
        self.news = Signal()
        """Fires when there are new items to send."""
        self.freed = Signal()
        """Fires when there may be more room."""
        self.refusal = ""
        """Why the last write failed; empty if it did not."""
        self._process = os.getpid()
        self._thread = ThreadPoolExecutor(1, "sluicegate-spool")
        self._waiting: deque[tuple[Work, asyncio.Future[None]]] = deque()
        self._working: asyncio.Task[None] | None = None

    async def call(self, work: Callable[..., R], *given: Any) -> R:
        """Call a function of the files in their thread; suspends until it has ended. Raises
        `RefusedError` and `TransientError`.
        """
        self._check_process()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: work(*given))
        except (sqlite3.Error, OSError) as error:
            raise refusal(error, self.store) from error

    def in_thread(self, work: Callable[..., R], *given: Any) -> R:
        """Call a function of the files in their thread. Blocks; called by other threads than the
        loop's.
        """
        return self._thread.submit(work, *given).result()

    async def put(self, items: Sequence[Encoded]) -> int:
        """Store items; return the offset of the first one. Suspends until they are on disk."""
        work = Work(puts=items)
        await self._store(work)
        self.news.fire()
        self.seal_later()
        return work.first

    def seal_later(self) -> None:
        """Seal the file to which items are appended soon, if another process sends them."""
        if self.store.writes and not self.store.sends and self._sealing is None:
            self._sealing = self._clock.call_at(self._clock.now() + self._seal_every, self._seal)

    def _seal(self) -> None:
        self._sealing = None
        self._begin(Work(seals=True)).add_done_callback(self._seal_again)

    def _seal_again(self, sealed: asyncio.Future[None]) -> None:
        if sealed.exception() is not None or self.store.segments[-1].unsettled:
            self.seal_later()

    async def settle(self, offsets: Iterable[int], ended: Extent | None = None) -> None:
        """Mark items, in ascending order, as settled, and a batch as ended."""
        await self._store(Work(settles=[*ranges_of(offsets)], drops=ended))
        self.freed.fire()

    async def keep(self, extent: Extent) -> None:
        """Store the extent of a batch. Suspends until it is on disk."""
        await self._store(Work(keeps=extent))

    async def _store(self, work: Work) -> None:
        await asyncio.shield(self._begin(work))

    def _begin(self, work: Work) -> asyncio.Future[None]:
        self._check_process()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((work, done))
        if self._working is None:
            self._working = loop.create_task(self._work(), name="sluicegate spool")
        return done

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group, self._waiting = self._waiting, deque()
                works = [work for work, _ in group]
                try:
                    await loop.run_in_executor(self._thread, self.store.apply, works)
                except Exception as error:
                    for work in works:
                        work.fail(error)
                self.refusal = ""
                for work, done in group:
                    told = None if work.error is None else refusal(work.error, self.store)
                    if told is not None:
                        self.refusal = self.refusal or text_of(told)
                    if done.done():
                        continue
                    if told is None:
                        done.set_result(None)
                    else:
                        done.set_exception(told)
                        done.exception()  # retrieved, for a caller that was cancelled
        finally:
            self._working = None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise ForkedError(
                "the spool was opened by the parent of this forked process, which still owns it; "
                "open a spool of its own in the child"
            )

    async def read(self, start: int, most: int, room: int) -> tuple[list[Item], int]:
        """Return the next unsettled items, and the offset that they reach."""
        return await self.call(self.store.read, start, most, room)

    async def close(self) -> None:
        """Finish pending calls, and close the files."""
        if self._sealing is not None:
            self._sealing.cancel()
        if self._working is not None:
            await asyncio.wait([self._working])
        try:
            await self.call(self.store.close)
        finally:
            self._thread.shutdown(wait=False)


def refusal(error: BaseException, store: Store) -> Exception:
    """Return the error for a failed call of the files: most faults of a disk need an operator."""
    told = _REFUSALS.get(code_of(error))
    if told is None and not isinstance(error, OSError):
        return TransientError(f"the spool {store.folder} failed: {for_log(error)}")
    return RefusedError(
        f"the spool {store.folder} cannot be used: {told or 'the system refuses it'} "
        f"({for_log(error)})"
    )
