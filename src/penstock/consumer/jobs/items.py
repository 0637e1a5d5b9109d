"""Items of events, formed into batches. Pure.

1. The items of a key are executed in the order in which they were added. A key is in one running batch at
   most, and may be in it with several items.
2. A batch is due when it is full, when its oldest item has waited for `delay`, or when nothing more is to
   come. Items of keys that are in a running batch do not count: they cannot be in another one.
3. A group without items is a placeholder: nothing of it is executed, and it takes a place in a batch, so
   that it is complete in the order of its key.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ..._core.order.keys import identity
from ..._core.order.lanes import Entry, Lanes
from .calling import as_callback

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from .context import EventContext


class BatchItem(Entry):
    """One value that is executed together with others.

    The executor may set `error` and `user_data`, which the callback of its group sees.
    """

    __slots__ = ("added_at", "error", "group", "is_placeholder", "key", "user_data", "value")

    def __init__(
        self,
        lane_key: Hashable,
        key: Any,
        value: Any,
        group: BatchItems,
        *,
        is_placeholder: bool = False,
    ) -> None:
        super().__init__(lane_key)
        self.key = key
        self.value = value
        self.error: BaseException | None = None
        """Why it failed."""
        self.user_data: Any = None
        self.group = group
        self.is_placeholder = is_placeholder
        self.added_at = 0.0

    @property
    def is_left(self) -> bool:
        """Whether the claim of its event has ended, so that nothing of it is executed any more."""
        return self.group.context.message.claim.is_closed

    def executed(self) -> BatchItems | None:
        """Note that it was executed; return its group if it was the last one. No item refers to its group
        from then on, which has its items: nothing is left to the collector of cycles.
        """
        group = self.group
        del self.group
        return group if group.executed() else None

    def wait_from(self, now: float) -> None:
        """Note when it was added."""
        self.added_at = now

    def fail(self, error: BaseException) -> None:
        """Note an error, unless the executor has set one of its own."""
        if self.error is None:
            self.error = error

    def __repr__(self) -> str:
        return f"BatchItem({self.key!r}, {self.value!r}, error={self.error!r})"


class BatchItems:
    """What one event adds to batches: any number of values, and one callback after all of them.

    Args:
        context: the event.
        key: the key of the values that are added by `add`, and of the place of a group without any.
        callback: a function of the context and this group, which runs in the event's turn once every item
            was executed, and returns what a handler returns.

    `user_data` is anything that the callback needs of the handler.
    """

    __slots__ = ("callback", "context", "items", "key", "left", "user_data")

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
        """Those that are not executed."""

    def add(self, *values: Any) -> BatchItems:
        """Add values with the key of the group; return the group."""
        return self.add_with_key(self.key, *values)

    def add_with_key(self, key: Any, *values: Any) -> BatchItems:
        """Add values with a key of their own; return the group."""
        lane_key = identity(key)
        self.items += [BatchItem(lane_key, key, value, self) for value in values]
        return self

    def entries(self) -> Sequence[BatchItem]:
        """What takes places in batches: the items, or a placeholder. Begins to count them."""
        key, entries = self.key, self.items
        if not entries:
            entries = [BatchItem(identity(key), key, None, self, is_placeholder=True)]
        self.left = len(entries)
        return entries

    def executed(self) -> bool:
        """Note that an item was executed; return whether it was the last one."""
        self.left -= 1
        return self.left == 0


class ItemFormer:
    """The items that are inside, and the batches that they make."""

    def __init__(self, size: int, delay: float) -> None:
        self.size = size
        self._delay = delay
        self._lanes: Lanes[BatchItem] = Lanes()
        self._ready: deque[BatchItem] = deque()
        self._busy: set[Hashable] = set()
        self._formable = 0
        """Items whose keys are in no running batch."""
        self.is_hurried = False
        self.inside = 0
        """Items that were added and not executed."""

    def has_key(self, key: Hashable) -> bool:
        """Whether an item of a key is inside."""
        return key in self._lanes.active

    def add(self, entries: Sequence[BatchItem], now: float) -> None:
        """Add items."""
        for entry in entries:
            entry.wait_from(now)
            if entry.lane_key in self._lanes.active:
                self._lanes.wait(entry)
            else:
                self._lanes.active.add(entry.lane_key)
                self._ready.append(entry)
            self._formable += entry.lane_key not in self._busy
        self.inside += len(entries)

    def hurry(self) -> None:
        """Let no item wait for others any more."""
        self.is_hurried = True

    @property
    def due_at(self) -> float | None:
        """When the next batch is due that is not full; `None` if nothing waits for that."""
        return self._ready[0].added_at + self._delay if self._ready else None

    def is_due(self, now: float) -> bool:
        """Whether a batch may be taken now."""
        if not self._ready:
            return False
        return (
            self._formable >= self.size
            or self.is_hurried
            or now >= self._ready[0].added_at + self._delay
        )

    def take(self) -> list[BatchItem]:
        """The next batch."""
        batch: list[BatchItem] = []
        while self._ready and len(batch) < self.size:
            entry = self._ready.popleft()
            batch.append(entry)
            batch += self._lanes.next_many(entry.lane_key, self.size - len(batch))
            self._busy.add(entry.lane_key)
            self._formable -= self._lanes.length(entry.lane_key)
        self._formable -= len(batch)
        return batch

    def done(self, batch: Sequence[BatchItem]) -> None:
        """A batch has been executed: its keys are free."""
        keys = dict.fromkeys([entry.lane_key for entry in batch])
        self._busy.difference_update(keys)
        for key in keys:
            following = self._lanes.leave(key)
            if following is not None:
                self._ready.append(following)
                self._formable += 1 + self._lanes.length(key)
        self.inside -= len(batch)

    def forget(self, group: BatchItems) -> None:
        """Remove the items of a group that are in no batch."""
        gone = self._lanes.drop_where(lambda entry: entry.group is group)
        heads = [entry for entry in self._ready if entry.group is group]
        for entry in heads:
            self._ready.remove(entry)
            following = self._lanes.leave(entry.lane_key)
            if following is not None:
                self._ready.append(following)
        self._formable -= sum(entry.lane_key not in self._busy for entry in gone) + len(heads)
        self.inside -= len(gone) + len(heads)
