"""The batches of one item batcher while a consumer runs.

1. A batch starts as soon as it is due and fewer than the maximum run: when its last item is added,
   when another batch ends, or by the timer of an incomplete one.
2. With a retry policy, an execution that raises is repeated for its items without an error of their
   own. Its keys stay busy meanwhile. Items whose claims have ended are not executed again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ..._core.classify import classified
from ..._core.retry_policy import RetryState
from ..._core.runtime.loops import Exit
from .calling import check_returned_nothing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..._core.clock import TimerHandle
    from ..._core.retry_policy import RetryPolicy
    from .context import EventContext
    from .events import Events
    from .items import BatchItem, BatchItems, ItemFormer

_RULE = "set the error of each failed item: item.error = ..."


class BatchRun:
    """The batches of one running consumer."""

    def __init__(
        self,
        events: Events,
        execute: Callable[..., Awaitable[object]],
        former: ItemFormer,
        retry: RetryPolicy | None,
        *,
        most: int,
        room: int,
    ) -> None:
        self._events = events
        self._clock = events.commons.clock
        self._execute = execute
        self.former = former
        self._retry = retry
        self._most = most
        self._room = room
        self._crowd: deque[BatchItems] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._timer: TimerHandle | None = None
        """Starts the next incomplete batch when it is due."""
        self.is_closed = False

    def submit(self, group: BatchItems) -> bool:
        """Add a group; return false if it waits for room."""
        if self._crowd or not self._take(group):
            self._crowd.append(group)
            return False
        return True

    def _take(self, group: BatchItems) -> bool:
        former = self.former
        if former.inside and former.inside + max(1, len(group.items)) > self._room:
            return False
        now = self._clock.now()
        former.add(group.entries(now))
        if len(self._running) < self._most and (self._timer is None or former.is_due(now)):
            self._start(now)
        return True

    def withdraw(self, group: BatchItems) -> None:
        """Remove the items of a group that are not in a batch yet."""
        if group in self._crowd:
            self._crowd.remove(group)
            self._events.has_room(group.context.message)
        else:
            self.former.forget(group)
            self._admit()
            self._start(self._clock.now())

    def _admit(self) -> None:
        while self._crowd and self._take(self._crowd[0]):
            self._events.has_room(self._crowd.popleft().context.message)

    def place(self, group: BatchItems) -> str:
        """Return the place of a group, for operators."""
        if group in self._crowd:
            return f"{self.former.inside} of {self._room} items"
        return f"{group.left} of {len(group.items)} items not executed"

    def hurry(self) -> None:
        """Stop waiting for more items."""
        self.former.hurry()
        self._start(self._clock.now())

    def _start(self, now: float) -> None:
        """Start the batches that are due, and the timer for the next one. A batch that waits for
        another one to end needs no timer.
        """
        if self.is_closed:
            return
        former, running = self.former, self._running
        while len(running) < self._most and former.is_due(now):
            task = asyncio.get_running_loop().create_task(self._executed(former.take()))
            running.add(task)
            self._events.workers.yield_soon()
            task.add_done_callback(self._ended)
        due = former.due_at
        if self._timer is None and due is not None and len(running) < self._most:
            self._timer = self._clock.call_at(due, self._alarm)

    def _alarm(self) -> None:
        self._timer = None
        self._start(self._clock.now())

    async def _executed(self, batch: list[BatchItem]) -> None:
        items = [item for item in batch if not (item.is_placeholder or item.is_left)]
        if items:
            await self._call(items)
        self.former.done(batch)
        for item in batch:
            group = item.executed()
            if group is not None:
                self._events.job_complete(group.context, partial(_called_back, group))
        self._admit()

    async def _call(self, items: Sequence[BatchItem]) -> None:
        try:
            if self._retry is None:
                await self._execute_once(items)
            else:
                await self._tried(items, RetryState(self._retry, classified, self._clock.now))
        except asyncio.CancelledError as error:
            if self.is_closed:
                raise
            self._failed(items, error)
        except Exit as error:
            self._failed(items, error)
            self._events.failed(error)
        except Exception as error:  # handled by the callbacks
            self._failed(items, error)

    async def _execute_once(self, items: Sequence[BatchItem]) -> None:
        returned = await self._execute([*items])
        if returned is not None:
            check_returned_nothing(returned, "execute", _RULE)

    async def _tried(self, items: Sequence[BatchItem], state: RetryState) -> None:
        """Execute items until that succeeds, there are no more tries, or no item is left to
        execute. Raises the last error.
        """
        while True:
            try:
                await self._execute_once(items)
            except Exception as error:
                failed, wait = error, state.wait_after(error)
            else:
                return
            if wait is not None:
                await self._clock.sleep(wait)
            items = [item for item in items if item.error is None and not item.is_left]
            if wait is None or not items:
                raise failed

    def _failed(self, items: Sequence[BatchItem], error: BaseException) -> None:
        for item in items:
            item.fail(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.failed(error)
        self._start(self._clock.now())

    def close(self) -> None:
        """Cancel all tasks; the events inside are left."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._running:
            task.cancel()


def _called_back(group: BatchItems, context: EventContext) -> Awaitable[object]:
    return group.callback(context, group)
