"""Fences through lanes.

A fence ends an *era*. A batch has the number of its era, and contains items of one era only. So no
later item shares a batch with items before the fence, and items that waited in a lane do not
linger.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from ..._core.batch import Reason
from ..._core.order.lanes import Entry
from .pack import Leftover, Sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..._core.order.lanes import Lanes
    from ..receipt import Resolvable
    from .pack import AddGroup

T = TypeVar("T")

FENCES = frozenset({Reason.MANUAL, Reason.SHUTDOWN_REQUEST})
"""Reasons that also cover items in lanes."""


class Waiting(Entry, Generic[T]):
    """An item in its lane."""

    __slots__ = ("at", "era", "item", "receipt", "size")

    def __init__(
        self, key: Hashable, item: T, size: int, receipt: Resolvable | None, *, at: float, era: int
    ) -> None:
        self.lane_key = key  # one statement: an entry is made for every waiting item
        self.size = size
        self.behind = None
        self.item = item
        self.receipt = receipt
        self.at = at
        self.era = era

    @property
    def leftover(self) -> Leftover[T]:
        """Return the item as evicted."""
        return Leftover(self.item, self.receipt, self.era)


class Eras(Generic[T]):
    """Items of ended eras: waiting in lanes, or ready."""

    __slots__ = ("_ready", "_reasons", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}
        """Number of items that wait in lanes, per era."""
        self._reasons: dict[int, Reason] = {}
        self._ready: dict[int, deque[list[Waiting[T]]]] = {}
        """Items whose turn has begun, per era and key."""

    @property
    def is_ready(self) -> bool:
        """Whether a batch is ready."""
        return bool(self._ready)

    @property
    def is_behind(self) -> bool:
        """Whether an item of an earlier era waits in a lane."""
        return bool(self._waiting)

    def end(self, era: int, reason: Reason, waiting: int) -> None:
        """End an era; `waiting` is the number of items in lanes, including earlier eras."""
        left = waiting - sum(self._waiting.values())
        if left:
            self._waiting[era] = left
            self._reasons[era] = reason

    def left_lane(self, era: int, count: int = 1) -> None:
        """Note that items of an era have left their lanes."""
        if era in self._waiting:
            self._waiting[era] -= count
            if not self._waiting[era]:
                del self._waiting[era]

    def put_back(
        self, lanes: Lanes[Waiting[T]], batch: Sealed[T], indices: Sequence[int], last: int
    ) -> None:
        """Return items of a batch to the front of their lanes; eras up to `last` have ended."""
        by_key: dict[Hashable, list[Waiting[T]]] = {}
        for index in indices:
            by_key.setdefault(batch.lanes[index], []).append(_waiting_again(batch, index))
        for key, entries in by_key.items():
            lanes.put_back(key, entries)
            for entry in entries:
                if entry.era <= last:
                    self._waiting[entry.era] = self._waiting.get(entry.era, 0) + 1

    def put_in_front(
        self, lanes: Lanes[Waiting[T]], group: AddGroup[T], key: Hashable, now: float, last: int
    ) -> None:
        """Put accepted items of an active key in front of its lane, in the era of its first item."""
        lane = lanes.lane(key)
        first = None if lane is None else lane.first
        era = last + 1 if first is None else min(first.era, last + 1)
        rows = [Waiting(key, item, size, r, at=now, era=era) for item, size, r, _ in group.rows()]
        lanes.put_back(key, rows)
        if era <= last:
            self._waiting[era] = self._waiting.get(era, 0) + len(rows)

    def begin(
        self, entry: Waiting[T], lanes: Lanes[Waiting[T]], max_items: int, max_bytes: int | None
    ) -> None:
        """Begin a key's turn with the items of its lane that have the same era and fit."""
        group, size = [entry], entry.size
        self._ready.setdefault(entry.era, deque()).append(group)
        while len(group) < max_items:
            behind = lanes.first(entry.lane_key)
            if behind is None or behind.era != entry.era:
                break
            size += behind.size
            if max_bytes is not None and size > max_bytes:
                break
            lanes.next(entry.lane_key)
            group.append(behind)
        self.left_lane(entry.era, len(group))

    def take(self, max_items: int, max_bytes: int | None) -> list[Waiting[T]]:
        """Take ready items of the earliest era, as many as fit; a key's items stay together."""
        era = min(self._ready)
        groups = self._ready[era]
        entries = groups.popleft()
        size = sum(entry.size for entry in entries)
        while groups and len(entries) + len(groups[0]) <= max_items:
            size += sum(entry.size for entry in groups[0])
            if max_bytes is not None and size > max_bytes:
                break
            entries += groups.popleft()
        if not groups:
            del self._ready[era]
        return entries

    def pop_item(self) -> tuple[Waiting[T], bool]:
        """Evict the oldest ready item; return also whether it was the last of its turn."""
        era = min(self._ready)
        groups = self._ready[era]
        entry = groups[0].pop(0)
        is_last = not groups[0]
        if is_last:
            groups.popleft()
            if not groups:
                del self._ready[era]
        return entry, is_last

    def withdraw(self, matches: Callable[[Waiting[T]], bool]) -> list[Waiting[T]]:
        """Remove and return the matching ready items."""
        gone: list[Waiting[T]] = []
        for era, groups in tuple(self._ready.items()):
            judged = [[(entry, matches(entry)) for entry in group] for group in groups]
            gone += [entry for group in judged for entry, is_gone in group if is_gone]
            left = [[entry for entry, is_gone in group if not is_gone] for group in judged]
            self._ready[era] = deque(group for group in left if group)
            if not self._ready[era]:
                del self._ready[era]
        return gone

    def ready_keys(self) -> set[Hashable]:
        """The keys of the ready items."""
        groups = (group for groups in self._ready.values() for group in groups)
        return {group[0].lane_key for group in groups}

    def until(self, number: int) -> int:
        """Count the items of eras up to this number."""
        behind = sum(count for era, count in self._waiting.items() if era <= number)
        ready = [groups for era, groups in self._ready.items() if era <= number]
        return behind + sum(len(group) for groups in ready for group in groups)

    def ages(self) -> Sequence[float]:
        """Yield the time at which the first item of each ready turn was accepted."""
        return [group[0].at for groups in tuple(self._ready.values()) for group in tuple(groups)]

    def sealed(self, entries: list[Waiting[T]], now: float, *, sized: bool) -> Sealed[T]:
        """Make a batch of items that have waited."""
        era = entries[0].era
        return Sealed(
            items=[entry.item for entry in entries],
            reason=self._reasons.get(era, Reason.MANUAL),
            number=era,
            oldest_at=min(entry.at for entry in entries),
            sealed_at=now,
            receipts={
                i: entry.receipt for i, entry in enumerate(entries) if entry.receipt is not None
            },
            sizes=[entry.size for entry in entries] if sized else None,
            bytes=sum(entry.size for entry in entries),
        )

    def clear(self) -> list[Waiting[T]]:
        """Evict the ready items; stop counting those in lanes."""
        groups = [group for era in sorted(self._ready) for group in self._ready[era]]
        self._ready.clear()
        self._waiting.clear()
        return [entry for group in groups for entry in group]


def _waiting_again(batch: Sealed[T], index: int) -> Waiting[T]:
    """Convert an item of a batch to an entry of its lane."""
    return Waiting(
        batch.lanes[index],
        batch.items[index],
        batch.sizes[index] if batch.sizes is not None else 0,
        batch.receipts.get(index),
        at=batch.oldest_at,
        era=batch.number,
    )
