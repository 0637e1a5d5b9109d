"""Batches of items: many events, keys and partitions in one call of an executor.

1. An event adds a group of items, and ends its turn. Its callback runs once, in a new turn of the
   event, after all its items were executed.
2. Items wait for at most `delay`. A batch has at most `max_batch_size` items, and at most
   `max_concurrent_batches` run at once.
3. If the executor raises, the items of its batch without their own error fail; the callbacks run
   nevertheless.
4. An event whose items would exceed `max_items` waits for room, and its partition handles
   no later event.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.clock import Signal, wait_until
from ..._core.errors import ClosedError, ConfigError
from ..._core.order.keys import accepted
from ..._core.runtime.exits import Exit
from .calling import as_function
from .items import ItemFormer
from .pending import Pending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence
    from datetime import timedelta

    from ..results import Incomplete
    from .context import EventContext, Finalise
    from .events import Events
    from .items import BatchItem, BatchItems

SHORTEST_DELAY = 0.001


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
        max_concurrent_batches: the maximum number of batches executed at once; default 10.
        delay: seconds that an item waits for others; default 0.005.
        max_items: the maximum number of items inside; default: twice the items of all running
            batches, at least 10,000.
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
        debug: bool = False,
        name: str = "items",
    ) -> None:
        self._execute = as_function("execute", execute, "a list of items", takes=1)
        self._size = checks.count("max_batch_size", max_batch_size)
        self._most = checks.count("max_concurrent_batches", max_concurrent_batches)
        self._delay = checks.seconds("delay", delay)
        if self._delay < SHORTEST_DELAY:
            raise checks.bad("delay", delay, "must be at least 0.001 s")
        room = max(10_000, 2 * self._size * self._most)
        self._room = checks.count("max_items", room if max_items is None else max_items)
        if self._room < self._size:
            rule = f"must be at least max_batch_size, {self._size}: no batch would ever be full"
            raise checks.bad("max_items", self._room, rule)
        self.debug = debug
        self.name = checks.text("name", name)
        self._run: BatchRun | None = None

    def add(self, group: BatchItems) -> Incomplete:
        """Add the items of an event; return the result that the handler or the finaliser must
        return.

        Does not suspend. Raises `ClosedError` if no running consumer uses this batcher, and
        `ConfigError` for a second group in one turn, and for a group that was already added. A turn that does not return the result fails
        with a `ConfigError`.
        """
        if self._run is None or self._run.is_closed:
            raise ClosedError(
                f"{self!r} is not used by a running consumer; see run_events(jobs=...)"
            )
        group.check_new()
        added = Added(self.name, self._run, group)
        group.context.note_scheduled(added, added.what)
        return added

    def begin(self, events: Events) -> BatchRun:
        """Begin a run. Raises `ConfigError` while another running consumer uses it."""
        if self._run is not None and not self._run.is_closed:
            raise ConfigError(f"{self!r} is already used by another consumer; create one for each")
        former = ItemFormer(self._size, self._delay)
        self._run = BatchRun(events, self._execute, former, most=self._most, room=self._room)
        return self._run

    @property
    def inside(self) -> int:
        """Number of items that were added and not executed."""
        return 0 if self._run is None else self._run.former.inside

    def has_key(self, key: Hashable) -> bool:
        """Return whether an item of a key is inside."""
        return self._run is not None and self._run.former.has_key(accepted(key))

    def __repr__(self) -> str:
        return f"ItemBatcher({self.name!r}, max_batch_size={self._size})"


@dataclass(frozen=True, slots=True)
class Added(Pending):
    """The result of `ItemBatcher.add`, returned by a handler."""

    name: str
    run: BatchRun
    group: BatchItems

    def submit(self, context: EventContext) -> bool:
        """Add the group; return false if it waits for room."""
        return self.run.submit(self.group)

    def withdraw(self) -> None:
        """Remove the items that are not in a batch yet."""
        self.run.withdraw(self.group)

    @property
    def what(self) -> str:
        """A description, for errors."""
        return f"items of {self.group.key!r} in {self.name!r}"

    def __str__(self) -> str:
        return f"in {self.name}: {self.run.place(self.group)}"


class BatchRun:
    """The batches of one running consumer."""

    def __init__(
        self,
        events: Events,
        execute: Callable[..., Awaitable[object]],
        former: ItemFormer,
        *,
        most: int,
        room: int,
    ) -> None:
        self._events = events
        self._clock = events.commons.clock
        self._execute = execute
        self.former = former
        self._most = most
        self._room = room
        self._crowd: deque[BatchItems] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._changed = Signal()
        self._forming: asyncio.Task[None] | None = None
        self.is_closed = False

    def submit(self, group: BatchItems) -> bool:
        """Add a group; return false if it waits for room."""
        if self._forming is None:
            self._forming = asyncio.get_running_loop().create_task(self._form())
            self._forming.add_done_callback(self._ended)
        if self._crowd or not self._take(group):
            self._crowd.append(group)
            return False
        return True

    def _take(self, group: BatchItems) -> bool:
        former = self.former
        if former.inside and former.inside + max(1, len(group.items)) > self._room:
            return False
        now, was_idle = self._clock.now(), former.due_at is None
        former.add(group.entries(), now)
        if was_idle or (len(self._running) < self._most and former.is_due(now)):
            self._changed.fire()  # otherwise the time of the next batch has not changed
        return True

    def withdraw(self, group: BatchItems) -> None:
        """Remove the items of a group that are not in a batch yet."""
        if group in self._crowd:
            self._crowd.remove(group)
            self._events.has_room(group.context.message)
        else:
            self.former.forget(group)
            self._admit()

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
        self._changed.fire()

    async def _form(self) -> None:
        """Start batches when they are due, until cancelled."""
        former, clock = self.former, self._clock
        while True:
            while len(self._running) < self._most and former.is_due(clock.now()):
                task = asyncio.get_running_loop().create_task(self._executed(former.take()))
                self._running.add(task)
                task.add_done_callback(self._ended)
            due = former.due_at if len(self._running) < self._most else None
            await wait_until(clock, math.inf if due is None else due, self._changed)

    async def _executed(self, batch: list[BatchItem]) -> None:
        items = [item for item in batch if not (item.is_placeholder or item.is_left)]
        if items:
            await self._call(items)
        self.former.done(batch)
        for item in batch:
            group = item.executed()
            if group is not None:
                self._events.job_complete(group.context, _callback(group))
        self._admit()
        self._changed.fire()

    async def _call(self, items: Sequence[BatchItem]) -> None:
        try:
            await self._execute([*items])
        except asyncio.CancelledError as error:
            if self.is_closed:
                raise
            self._failed(items, error)
        except Exit as error:
            self._failed(items, error)
            self._events.failed(error)
        except Exception as error:  # handled by the callbacks
            self._failed(items, error)

    def _failed(self, items: Sequence[BatchItem], error: BaseException) -> None:
        for item in items:
            item.fail(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.fire()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.failed(error)

    def close(self) -> None:
        """Cancel all tasks; the events inside are left."""
        self.is_closed = True
        for task in (self._forming, *self._running):
            if task is not None:
                task.cancel()


def _callback(group: BatchItems) -> Finalise:
    return lambda context: group.callback(context, group)
