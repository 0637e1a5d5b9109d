"""The recipe that most services start with: an `asyncio.Queue` and a task that collects up to
`size` items or `linger` seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

_END: Any = object()
"""The end mark, put last; earlier items are still written."""

Write = Callable[[Sequence[Any]], Awaitable[None]]


class QueueRecipe:
    """A bounded queue and one collecting task. `async with` starts it; leaving waits until all
    items are written.
    """

    def __init__(
        self, write: Write, *, size: int, linger: float, depth: int, eager: bool = False
    ) -> None:
        self._write = write
        self._size = size
        self._linger = linger
        self._collect = self._collect_eagerly if eager else self._collect_plainly
        self.queue: asyncio.Queue[Any] = asyncio.Queue(depth)

    async def __aenter__(self) -> asyncio.Queue[Any]:
        self.task = asyncio.create_task(self._work())
        return self.queue

    async def __aexit__(self, *error: object) -> None:
        await self.queue.put(_END)
        await self.task

    async def _work(self) -> None:
        ended = False
        while not ended:
            first = await self.queue.get()
            if first is _END:
                return
            batch = [first]
            ended = await self._collect(batch)
            await self._write(batch)

    async def _collect_plainly(self, batch: list[Any]) -> bool:
        """Fill the batch in the common way; return whether that was the end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._linger
        while len(batch) < self._size:
            remaining = until - loop.time()
            if remaining <= 0:
                return False
            try:
                item = await asyncio.wait_for(self.queue.get(), remaining)
            except TimeoutError:
                return False
            if item is _END:
                return True
            batch.append(item)
        return False

    async def _collect_eagerly(self, batch: list[Any]) -> bool:
        """Like the plain one, but take ready items without a timer. It is less common, and compared
        for fairness.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._linger
        while len(batch) < self._size:
            try:
                item = self.queue.get_nowait()
            except asyncio.QueueEmpty:
                remaining = until - loop.time()
                if remaining <= 0:
                    return False
                try:
                    item = await asyncio.wait_for(self.queue.get(), remaining)
                except TimeoutError:
                    return False
            if item is _END:
                return True
            batch.append(item)
        return False
