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

from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.errors import ClosedError, ConfigError
from ..._core.order.keys import accepted
from ..._core.retry_policy import checked_policy
from .calling import as_function
from .items import ItemFormer
from .pending import Pending
from .running_batches import BatchRun

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from datetime import timedelta

    from ..._core.retry_policy import RetryPolicy
    from ..results import Incomplete
    from .context import EventContext
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
        retry: the attempts and waits of an execution that raises. Meanwhile its items keep their
            keys and count in `max_concurrent_batches`. Items that have an `error` are not executed
            again; the others get the error of the last try. Default: one try.
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
        `ConfigError` for a second group in one turn, and for a group that was already added. A turn that does not return the result fails
        with a `ConfigError`.
        """
        if self._run is None or self._run.is_closed:
            raise ClosedError(
                f"{self!r} is not used by a running consumer; see run_events(jobs=...)"
            )
        group.check_new()
        added = Added(self, self._run, group)
        group.context.turn.schedule(added)
        return added

    def begin(self, events: Events) -> BatchRun:
        """Begin a run. Raises `ConfigError` while another running consumer uses it."""
        if self._run is not None and not self._run.is_closed:
            raise ConfigError(f"{self!r} is already used by another consumer; create one for each")
        former = ItemFormer(self._size, self._delay)
        self._run = BatchRun(
            events, self._execute, former, self._retry, most=self._most, room=self._room
        )
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


class Added(Pending):
    """The result of `ItemBatcher.add`, returned by a handler."""

    __slots__ = ("_batcher", "_group", "_run")

    def __init__(self, batcher: ItemBatcher, run: BatchRun, group: BatchItems) -> None:
        self._batcher = batcher
        self._run = run
        self._group = group

    def submit(self, context: EventContext) -> bool:
        """Add the group; return false if it waits for room."""
        return self._run.submit(self._group)

    def withdraw(self) -> None:
        """Remove the items that are not in a batch yet."""
        self._run.withdraw(self._group)

    @property
    def what(self) -> str:
        """A description, for errors."""
        return f"items of {self._group.key!r} in {self._batcher.name!r}"

    def __str__(self) -> str:
        return f"in {self._batcher.name}: {self._run.place(self._group)}"
