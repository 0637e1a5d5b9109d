"""Arrival order.

1. A batch's time starts with its first item, and the first item always fits.
2. The open batch never exceeds `max_items`. It is sealed when it is full, before an item that would
   exceed `max_bytes`, when it is due and a worker takes it, or by `seal`.
3. A due batch continues to fill while no worker is free.
4. A new `max_items` applies to all queued items: an open batch that has reached it is sealed, a
   larger sealed one is cut when it is taken. The parts keep reason, number and times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ..._core.batch import Reason
from .gatherer import Snapshot
from .pack import Queue, oldest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ledger import Ledger
    from ..receipt import Resolvable
    from .gatherer import Shape
    from .pack import AddGroup, Evicted, Leftover, Matches, Numbers, Pack, Sealed

T = TypeVar("T")


class PlainGatherer(Generic[T]):
    """Items in arrival order."""

    def __init__(self, shape: Shape, pack: Pack[T], ledger: Ledger, numbers: Numbers) -> None:
        self._shape = shape
        self._pack = pack
        self._ledger = ledger
        self._numbers = numbers
        self._queue: Queue[T] = Queue()

    def offer(self, group: AddGroup[T], now: float) -> Sequence[Leftover[T]]:
        if group.sizes is None:
            self._offer_unsized(group.items, group.receipts, now)
            self._ledger.entered(len(group.items), 0)
            return ()
        pack, most = self._pack, self._shape.max_bytes
        for item, size, receipt, _ in group.rows():
            if pack.exceeds(most, size):
                self.seal(Reason.BYTES, now)
            pack.add(item, size, receipt, now)
            self._seal_full(now)
        self._ledger.entered(len(group.items), group.bytes)
        return ()

    def _offer_unsized(
        self, items: Sequence[T], receipts: Sequence[Resolvable | None] | None, now: float
    ) -> None:
        pack, most, start = self._pack, self._shape.max_items, 0
        while start < len(items):
            opened = pack.items
            filled = len(opened)
            if not filled:
                pack.begin(now)
            end = start + most - filled
            opened.extend(items[start:end])
            if receipts is not None:
                pack.note(receipts[start:end], filled)
            start = end
            if len(opened) >= most:
                self.seal(Reason.SIZE, now)

    def _seal_full(self, now: float) -> None:
        reason = self._pack.full(self._shape.max_items, self._shape.max_bytes)
        if reason is not None:
            self.seal(reason, now)

    def seal(self, reason: Reason, now: float) -> None:
        filled = len(self._pack.items)
        if filled and (reason is not Reason.SIZE or filled >= self._shape.max_items):
            self._queue.batches.append(self._pack.seal(reason, self._numbers.next(), now))

    @property
    def spare(self) -> int:
        """Number of items that the fast path may append; 0 for the first, which needs the time."""
        filled = len(self._pack.items)
        return self._shape.max_items - 1 - filled if filled else 0

    def due_at(self) -> float | None:
        pack = self._pack
        return pack.oldest_at + self._shape.max_delay if pack.items else None

    def take(self, now: float) -> Sealed[T] | None:
        batches, most = self._queue.batches, self._shape.max_items
        if not batches:
            due = self.due_at()
            if due is None or now < due:
                return None
            self.seal(Reason.TIME, now)
        taken = batches[0]
        if len(taken.items) > most:
            taken, rest = taken.pick(range(most)), taken.pick(range(most, len(taken.items)))
            batches[0] = rest
            batches.appendleft(taken)
        self._ledger.taken(len(taken.items), taken.bytes)
        return batches.popleft()  # at last: a step that fails leaves it in the queue

    def done(
        self, batch: Sealed[T], ended: Sequence[int] | None = None, back: Sequence[int] = ()
    ) -> Sequence[Leftover[T]]:
        return ()

    def evict_oldest(self) -> Evicted[T] | None:
        if self._queue:
            evicted = self._queue.pop_item()
        elif self._pack.items:
            evicted = self._pack.pop_first()
        else:
            return None
        self._ledger.left_queue(1, evicted.size)
        return evicted

    def clear(self, now: float) -> list[Leftover[T]]:
        self.seal(Reason.SHUTDOWN, now)
        size = sum(batch.bytes for batch in self._queue.batches)
        gone = self._queue.clear()
        self._ledger.left_queue(len(gone), size)
        return gone

    def withdraw(self, matches: Matches, now: float) -> list[Leftover[T]]:
        parts = self._queue.withdraw(matches)
        opened = self._pack.withdraw(matches, self._numbers.last + 1)
        parts += () if opened is None else (opened,)
        gone = [leftover for part in parts for leftover in part.leftovers()]
        self._ledger.left_queue(len(gone), sum(part.bytes for part in parts))
        return gone

    def resubmit(self, group: AddGroup[T], now: float) -> Sequence[Leftover[T]]:
        return self.offer(group, now)

    def queued_until(self, number: int) -> int:
        return self._queue.until(number)

    @property
    def is_ready(self) -> bool:
        return bool(self._queue)

    def snapshot(self) -> Snapshot:
        oldest_at = oldest_of(self._queue, self._pack)
        return Snapshot(len(self._pack.items), len(self._queue), oldest_at)
