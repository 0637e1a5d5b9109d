"""Evictions: queued items that leave a keyed gatherer without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from .pack import Evicted, oldest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..._core.ledger import Ledger
    from ..._core.order.lanes import Lanes
    from .eras import Eras, Waiting
    from .keyed_open_batch import KeyedPack
    from .pack import Leftover, Matches, Queue

T = TypeVar("T")


class Evictions(NamedTuple, Generic[T]):
    """The possible places of an item in a keyed gatherer. `release` ends a key's turn."""

    lanes: Lanes[Waiting[T]]
    eras: Eras[T]
    queue: Queue[T]
    pack: KeyedPack[T]
    ledger: Ledger
    release: Callable[[Hashable], None]

    def oldest(self, *, repeats: bool) -> Evicted[T] | None:
        """Evict the first item of the oldest batch, or of an older lane."""
        if self.eras.is_ready:
            entry, is_last = self.eras.pop_item()
            if is_last:
                self.release(entry.lane_key)
            evicted = Evicted(entry.item, entry.size, entry.receipt)
        else:
            waiting, batched = self.lanes.oldest, oldest_of(self.queue, self.pack)
            if waiting is not None and (batched is None or waiting.at < batched):
                self.lanes.drop_first(waiting.lane_key)
                self.eras.left_lane(waiting.era)
                evicted = Evicted(waiting.item, waiting.size, waiting.receipt)
            elif batched is not None:
                evicted = self._batched(repeats=repeats)
            else:
                return None
        self.ledger.left_queue(1, evicted.size)
        return evicted

    def _batched(self, *, repeats: bool) -> Evicted[T]:
        if self.queue:
            keys: list[Hashable] = self.queue.batches[0].lanes
            key = keys[0]
            is_last = not repeats or keys.count(key) == 1
            evicted = self.queue.pop_item()
        else:
            evicted, key, is_last = self.pack.pop_keyed()
        if is_last:
            self.release(key)
        return evicted

    def withdraw(self, matches: Matches, number: int) -> list[Leftover[T]]:
        """Evict the items with matching receipts; those of the open batch have this number.

        Lanes come first: a key that is released begins its next turn.
        """

        def is_gone(entry: Waiting[T]) -> bool:
            return entry.receipt is not None and matches(entry.receipt)

        waiting = self.lanes.drop_where(is_gone)
        for entry in waiting:
            self.eras.left_lane(entry.era)
        late = self.eras.withdraw(is_gone)
        parts = self.queue.withdraw(matches)
        opened = self.pack.withdraw(matches, number)
        parts += () if opened is None else (opened,)
        gone = [leftover for part in parts for leftover in part.leftovers()]
        gone += [entry.leftover for entry in (*late, *waiting)]
        size = sum(part.bytes for part in parts) + sum(entry.size for entry in (*late, *waiting))
        self.ledger.left_queue(len(gone), size)
        lanes = [entry.lane_key for entry in late] + [key for part in parts for key in part.lanes]
        if lanes:
            batched = self._batched_keys()
            for key in dict.fromkeys(key for key in lanes if key not in batched):
                self.release(key)
        return gone

    def _batched_keys(self) -> set[Hashable]:
        keys = self.eras.ready_keys().union(self.pack.opened.keys)
        return keys.union(*(batch.lanes for batch in self.queue.batches))
