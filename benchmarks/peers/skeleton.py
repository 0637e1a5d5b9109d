"""A minimal batcher: the fixed reference for the cost of a batch.

It has a bounded ledger with producers that wait in order, batches sealed by size and by linger, an
occasional turn for other tasks, a task and a timeout for each flush, a limited number of concurrent
flushes, counts of delivered and failed items, and a drain on leaving.

It has no receipts, no outcome per item, no states, no observers, no keys or tenants, no sizes in
bytes, no overflow policies, and no protection against use from other threads or loops. Its code
does not change with the batcher, so that ratios to it are comparable across revisions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

YIELD_EVERY = 128
"""Number of adds between two turns for other tasks."""
SLOW_PATH_WEIGHT = 8
"""Weight of an add on the slow path in this number."""


class Skeleton(Generic[T]):
    """A batcher around `write`. `async with` opens it; leaving waits until all is written."""

    def __init__(
        self,
        write: Callable[[tuple[T, ...]], Awaitable[object]],
        *,
        size: int,
        linger: float,
        depth: int,
        workers: int = 1,
        timeout: float = 30.0,
    ) -> None:
        self._write = write
        self._size = size
        self._linger = linger
        self._depth = depth
        self._workers = workers
        self._timeout = timeout
        self._open: list[T] = []
        self._limit = 0
        """Length of the open batch below which an add only appends."""
        self._unyielded = 0
        self._oldest = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sealed: deque[list[T]] = deque()
        self._waiting = 0
        """Number of items in sealed batches."""
        self._flying = 0
        """Number of items in flight, plus room granted to producers that have not yet run."""
        self._flights: set[asyncio.Task[None]] = set()
        self._producers: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self.delivered = 0
        self.failed = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._seal()
        self._dispatch()
        if self._flights:
            self._idle = self._loop.create_future()
            await self._idle
        if self._timer is not None:
            self._timer.cancel()

    @property
    def inside(self) -> int:
        """Number of accepted items that are neither delivered nor failed."""
        return len(self._open) + self._waiting + self._flying

    async def add(self, item: T) -> None:
        """Accept an item; wait for room, and occasionally let other tasks run."""
        items = self._open
        if len(items) < self._limit:
            items.append(item)
            return
        await self._add_slowly(item)

    async def _add_slowly(self, item: T) -> None:
        if self._unyielded >= YIELD_EVERY:
            self._unyielded = 0
            await asyncio.sleep(0)
        self._unyielded += SLOW_PATH_WEIGHT
        if self._producers or self.inside >= self._depth:
            await self._wait_for_room()
        if not self._open:
            self._oldest = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_at(self._oldest + self._linger, self._on_timer)
        self._open.append(item)
        if len(self._open) >= self._size:
            self._seal()
        self._dispatch()
        self._refresh()

    async def _wait_for_room(self) -> None:
        turn = self._loop.create_future()
        self._producers.append(turn)
        self._limit = 0
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._producers.remove(turn)
            else:
                self._flying -= 1
                self._admit()
            raise
        self._flying -= 1

    def _refresh(self) -> None:
        """Update the number of adds that may only append."""
        filled = len(self._open)
        if not filled or self._producers:
            self._limit = 0
            return
        spare = min(self._size - 1 - filled, self._depth - self.inside, YIELD_EVERY)
        self._limit = filled + spare
        self._unyielded += spare

    def _on_timer(self) -> None:
        self._timer = None
        if not self._open:
            return
        due = self._oldest + self._linger
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._on_timer)
            return
        self._seal()
        self._dispatch()
        self._refresh()

    def _seal(self) -> None:
        if self._open:
            self._sealed.append(self._open)
            self._waiting += len(self._open)
            self._open = []

    def _dispatch(self) -> None:
        """Start flushes while batches and workers are free."""
        while self._sealed and len(self._flights) < self._workers:
            batch = self._sealed.popleft()
            self._waiting -= len(batch)
            self._flying += len(batch)
            flight = self._loop.create_task(self._fly(batch))
            self._flights.add(flight)
            timeout = self._loop.call_later(self._timeout, flight.cancel)
            flight.add_done_callback(partial(self._land, batch, timeout))

    async def _fly(self, batch: list[T]) -> None:
        await self._write(tuple(batch))

    def _land(
        self, batch: list[T], timeout: asyncio.TimerHandle, flight: asyncio.Task[None]
    ) -> None:
        timeout.cancel()
        self._flights.discard(flight)
        self._flying -= len(batch)
        if flight.cancelled() or flight.exception() is not None:
            self.failed += len(batch)
        else:
            self.delivered += len(batch)
        self._admit()
        self._dispatch()
        self._refresh()
        if self._idle is not None and not self._flights and not self._idle.done():
            self._idle.set_result(None)

    def _admit(self) -> None:
        """Grant freed room to the producers that have waited longest."""
        while self._producers and self.inside < self._depth:
            turn = self._producers.popleft()
            if not turn.done():
                self._flying += 1
                turn.set_result(None)
