"""Items of events, formed into batches. Pure.

1. The items of a key are executed in the order in which they were added. A key is in at most one
   running batch, possibly with several items.
2. A batch is due when it is full, when its oldest item has waited for `delay`, or when no more
   items are expected. Items of keys in a running batch do not count, since they cannot join another
   batch.
3. A group without items has a placeholder, which is not executed, but takes a place in a batch, so
   that the group is completed in the order of its key.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ..._core.errors import ConfigError
from ..._core.order.keys import identity
from ..._core.order.lanes import Entry, Lanes
from ..handling.handlers import as_callback

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from .context import EventContext


class BatchItem(Entry):
    """A value that is executed together with others.

    The executor may set `error` and `user_data` for the callback of its group.
    """

    __slots__ = ("error", "group", "key", "user_data", "value")

    is_placeholder = False

    def __init__(self, lane_key: Hashable, key: Any, value: Any, group: BatchItems) -> None:
        # `super().__init__` is not called, since this runs once per item
        self.lane_key = lane_key
        self.behind = None
        self.key = key
        self.value = value
        self.error: BaseException | None = None
        """Why it failed; `None` if it did not."""
        self.user_data: Any = None
        self.group = group

    @property
    def is_left(self) -> bool:
        """Whether the claim of its event has ended, so that the item is not executed any more."""
        return self.group.context.message.claim.is_closed

    def end(self) -> BatchItems | None:
        """Record that the item was executed; return its group if it was the group's last item. The
        reference to the group is removed, so that no reference cycle is left to the garbage
        collector.
        """
        group = self.group
        del self.group
        return group if group.end_item() else None

    def fail(self, error: BaseException) -> None:
        """Set an error, unless the executor has already set one."""
        if self.error is None:
            self.error = error

    def __repr__(self) -> str:
        return f"BatchItem({self.key!r}, {self.value!r}, error={self.error!r})"


class Placeholder(BatchItem):
    """The entry of a group without items."""

    __slots__ = ()

    is_placeholder = True


class BatchItems:
    """Values that one event adds to batches, with one callback after all of them.

    Args:
        context: the event.
        key: the key of the values that are added by `add`, and of the placeholder of an empty
            group.
        callback: a function of the context and this group. It runs in the event's turn after every
            item was executed, and returns the same results as a handler.

    `user_data` is arbitrary data that the handler stores for the callback.
    """

    __slots__ = (
        "_is_submitted", "added_at", "callback", "context", "items", "key", "left", "user_data",
    )  # fmt: skip

    def __init__(
        self,
        context: EventContext,
        key: Any,
        callback: Callable[[EventContext, BatchItems], object],
    ) -> None:
        self.context = context
        self.key = key
        self.callback = as_callback(callback)
        self.user_data: Any = None
        self.items: list[BatchItem] = []
        """The items in the order in which they were added."""
        self.left = 0
        """Number of items that are not executed yet."""
        self.added_at = 0.0
        """The time from which its items wait for others."""
        self._is_submitted = False

    def add(self, *values: Any) -> BatchItems:
        """Add values with the key of the group; return the group."""
        return self.add_with_key(self.key, *values)

    def add_with_key(self, key: Any, *values: Any) -> BatchItems:
        """Add values with another key; return the group.

        Raises `ConfigError` after the group was added to a batcher and the turn has ended.
        """
        self.check_new()
        lane_key = identity(key)
        self.items += [BatchItem(lane_key, key, value, self) for value in values]
        return self

    def entries(self, now: float) -> Sequence[BatchItem]:
        """Return the entries for batches: the items, or a placeholder. Starts their count and their
        wait.
        """
        self._is_submitted = True
        key, entries = self.key, self.items
        if not entries:
            entries = [Placeholder(identity(key), key, None, self)]
        self.left = len(entries)
        self.added_at = now
        return entries

    def check_new(self) -> None:
        """Raise `ConfigError` if the group is, or was, in a batcher."""
        if self._is_submitted:
            rule = "was already added to a batcher; create a new group for further items"
            raise ConfigError(f"the group of {self.context.message!r} {rule}")

    def end_item(self) -> bool:
        """Record that an item was executed; return whether it was the last one."""
        self.left -= 1
        return self.left == 0


class ItemFormer:
    """The items inside, and the batches that they form."""

    def __init__(self, size: int, delay: float) -> None:
        self.size = size
        self._delay = delay
        self._lanes: Lanes[BatchItem] = Lanes()
        self._ready: deque[BatchItem] = deque()
        self._busy: set[Hashable] = set()
        self._formable = 0
        """Number of items whose keys are in no running batch."""
        self.is_hurried = False
        self.inside = 0
        """Number of items that were added and not executed."""

    def has_key(self, key: Hashable) -> bool:
        """Return whether an item of a key is pending."""
        return key in self._lanes.active

    def add(self, entries: Sequence[BatchItem]) -> None:
        """Add the items of a group."""
        active, ready, busy = self._lanes.active, self._ready, self._busy
        behind: list[BatchItem] = []
        for entry in entries:
            if entry.lane_key in active:
                behind.append(entry)
            else:
                active.add(entry.lane_key)
                ready.append(entry)
        if behind:
            self._lanes.wait_all(behind)
        self._formable += len(entries)
        if busy:
            self._formable -= sum([entry.lane_key in busy for entry in behind])
        self.inside += len(entries)

    def hurry(self) -> None:
        """Stop waiting for more items."""
        self.is_hurried = True

    @property
    def due_at(self) -> float | None:
        """The time at which the next incomplete batch is due; `None` without ready items."""
        return self._ready[0].group.added_at + self._delay if self._ready else None

    def is_due(self, now: float) -> bool:
        """Return whether a batch may be taken now."""
        if not self._ready:
            return False
        return (
            self._formable >= self.size
            or self.is_hurried
            or now >= self._ready[0].group.added_at + self._delay
        )

    def take(self) -> list[BatchItem]:
        """Remove and return the next batch."""
        batch: list[BatchItem] = []
        ready, lanes, size = self._ready, self._lanes, self.size
        while ready and len(batch) < size:
            entry = ready.popleft()
            key = entry.lane_key
            batch.append(entry)
            self._busy.add(key)
            if key in lanes.waiting_lanes:
                batch += lanes.next_many(key, size - len(batch))
                self._formable -= lanes.length(key)
        self._formable -= len(batch)
        return batch

    def done(self, batch: Sequence[BatchItem]) -> None:
        """Free the keys of an executed batch."""
        keys = dict.fromkeys([entry.lane_key for entry in batch])
        self._busy.difference_update(keys)
        following, _held = self._lanes.leave_all(keys)
        self._ready += following
        self._formable += sum([1 + self._lanes.length(entry.lane_key) for entry in following])
        self.inside -= len(batch)

    def forget(self, group: BatchItems) -> None:
        """Remove the items of a group that are not in a batch yet."""
        entries = group.items or self._placeholders(group)
        gone = [entry for entry in entries if self._lanes.drop(entry)]
        heads = [entry for entry in entries if entry in self._ready]
        for entry in heads:
            self._ready.remove(entry)
            following = self._lanes.leave(entry.lane_key)
            if following is not None:
                self._ready.append(following)
        self._formable -= sum(entry.lane_key not in self._busy for entry in gone) + len(heads)
        self.inside -= len(gone) + len(heads)

    def _placeholders(self, group: BatchItems) -> list[BatchItem]:
        lane = self._lanes.lane(identity(group.key))
        waiting = [*self._ready, *(lane or ())]
        return [entry for entry in waiting if entry.is_placeholder and entry.group is group]
