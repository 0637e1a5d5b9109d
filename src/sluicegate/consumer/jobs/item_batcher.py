"""Batches of items: many events, keys and partitions in one call of an executor.

1. An event adds a group of items, and ends its turn. Its callback runs once, in a new turn of the
   event, after all its items were executed.
2. Items wait for at most `delay`. A batch has at most `max_batch_size` items, and at most
   `max_concurrent_batches` run concurrently. It starts as soon as it is due and fewer run: when its
   last item is added, when another batch ends, or by the timer of an incomplete one.
3. If the executor raises, the items of its batch without their own error fail; the callbacks run
   nevertheless. With a retry policy, it is repeated for these items first, and their keys stay busy
   meanwhile. Items whose claims have ended are not executed again.
4. An event whose items would exceed `max_items` waits for room, and its partition handles no later
   event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.classify import classified
from ..._core.errors import ClosedError, ConfigError
from ..._core.order.keys import accepted
from ..._core.retry_policy import RetryState, checked_policy
from ..._core.runtime.loops import Exit
from ..handling.handlers import as_function, check_returned_nothing
from .context import Pending
from .items import ItemFormer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence
    from datetime import timedelta

    from ..._core.clock import TimerHandle
    from ..._core.retry_policy import RetryPolicy
    from ..handling.results import Incomplete
    from .context import EventContext
    from .events import Events
    from .items import BatchItem, BatchItems


SHORTEST_DELAY = 0.001

_RULE = "set the error of each failed item: item.error = ..."


class ItemBatcher:
    """A batcher that executes items of events in batches.

        async def write(items):
            await table.put([item.value for item in items])

        async def written(context, group):
            failed = [item for item in group.items if item.error is not None]
            ...

        writes = ItemBatcher(write, max_batch_size=50)

        async def handle(context):
            group = BatchItems(context, context.key, written).add(*rows_of(context.value))
            return writes.add(group)

    Args:
        execute: a function of a list of `BatchItem`s, async, or plain to run in a thread. It stores
            the result of an item in its `error` and `user_data`.
        max_batch_size: the maximum number of items of a batch.
        max_concurrent_batches: the maximum number of batches executed concurrently; default 10.
        delay: seconds that an item waits for others; default 0.005.
        max_items: the maximum number of pending items; default: twice the items of all running
            batches, at least 10,000.
        retry: the attempts and waits of an execution that raises. Meanwhile its items keep their
            keys and count in `max_concurrent_batches`. Items that have an `error` are not executed
            again; the others get the error of the last attempt. Default: one attempt.
        debug: as for `JobScheduler`.
        name: the name in messages.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        execute: Callable[[list[BatchItem]], object],
        *,
        max_batch_size: int,
        max_concurrent_batches: int = 10,
        delay: float | timedelta = 0.005,
        max_items: int | None = None,
        retry: RetryPolicy | None = None,
        debug: bool = False,
        name: str = "items",
    ) -> None:
        self._execute = as_function("execute", execute, "a list of items", takes=1)
        self._size = checks.count("max_batch_size", max_batch_size)
        self._most = checks.count("max_concurrent_batches", max_concurrent_batches)
        self._delay = checks.seconds("delay", delay, usual=checks.LONG_DELAY)
        if self._delay < SHORTEST_DELAY:
            raise checks.bad("delay", delay, "must be at least 0.001 s")
        room = max(10_000, 2 * self._size * self._most)
        self._room = checks.count("max_items", room if max_items is None else max_items)
        if self._room < self._size:
            rule = f"must be at least max_batch_size, {self._size}: no batch would ever be full"
            raise checks.bad("max_items", self._room, rule)
        self._retry = None if retry is None else checked_policy(retry)
        self.debug = checks.flag("debug", debug)
        self.name = checks.text("name", name)
        self._run: BatchRun | None = None

    def add(self, group: BatchItems) -> Incomplete:
        """Add the items of an event; return the result that the handler or the finaliser must
        return.

        Does not suspend. Raises `ClosedError` if no running consumer uses this batcher, and
        `ConfigError` for a second group in one turn, and for a group that was already added. A turn
        that does not return the result fails with a `ConfigError`.
        """
        run = self._run
        if run is None or run.is_closed:
            raise ClosedError(
                f"{self!r} is not used by a running consumer; see run_events(jobs=...)"
            )
        group.check_new()
        added = Added(run, group)
        group.context.turn.schedule(added)
        return added

    def begin(self, events: Events) -> BatchRun:
        """Begin a run. Raises `ConfigError` while another running consumer uses it."""
        if self._run is not None and not self._run.is_closed:
            raise ConfigError(f"{self!r} is already used by another consumer; create one for each")
        former = ItemFormer(self._size, self._delay)
        self._run = BatchRun(
            events,
            self._execute,
            former,
            self._retry,
            most=self._most,
            room=self._room,
            name=self.name,
        )
        return self._run

    @property
    def inside(self) -> int:
        """Number of items that were added and not executed."""
        return 0 if self._run is None else self._run.former.inside

    def has_key(self, key: Hashable) -> bool:
        """Return whether an item of this key is pending."""
        return self._run is not None and self._run.former.has_key(accepted(key))

    def __repr__(self) -> str:
        return f"ItemBatcher({self.name!r}, max_batch_size={self._size})"


class Added(Pending):
    """The result of `ItemBatcher.add`, returned by a handler."""

    __slots__ = ("_group", "_run")

    def __init__(self, run: BatchRun, group: BatchItems) -> None:
        self._run = run
        self._group = group

    def submit(self) -> bool:
        """Add the group; return false if it waits for room."""
        return self._run.submit(self._group)

    def withdraw(self) -> None:
        """Remove the items that are not in a batch yet."""
        self._run.withdraw(self._group)

    @property
    def what(self) -> str:
        """A description, for errors."""
        return f"items of {self._group.key!r} in {self._run.name!r}"

    def __str__(self) -> str:
        return f"in {self._run.name}: {self._run.place(self._group)}"


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
        name: str,
    ) -> None:
        self._events = events
        self._clock = events.run.clock
        self._execute = execute
        self.former = former
        self._retry = retry
        self._most = most
        self._room = room
        self.name = name
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
            self._events.let_continue(group.context.message)
        else:
            self.former.forget(group)
            self._admit()
            self._start(self._clock.now())

    def _admit(self) -> None:
        while self._crowd and self._take(self._crowd[0]):
            self._events.let_continue(self._crowd.popleft().context.message)

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
            group = item.end()
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
        """Execute items until that succeeds, there are no more attempts, or no item is left to
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
