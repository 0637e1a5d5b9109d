"""Order per key: many keys in a batch, a key in at most one batch at a time.

A pack gathers items of idle keys. Items of busy keys wait in lanes, and do not count for batches,
until `done` ends the turn of their key. During a backoff only the keys of unsettled items are busy.

1. A batch has one item of a key, or with `repeats` any number of them, in order.
2. A fence ends an era (see `eras`).
3. A key is free when all its items in a batch have ended and the batch is not at its destination.
   An item that was cut off has not ended until its write has: it may still take effect.
4. With `repeats`, items that follow a failed one of their key in a batch wait again, behind it.
5. If an item was returned `unsent`, the later items of its key are also returned. Keys that fail
   for good follow `holds`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ..._core.batch import Reason
from ..._core.errors import KeyFailedError
from ..._core.order.lanes import Lanes
from .eras import FENCES, Eras, Waiting
from .gatherer import Snapshot
from .holds import LEFT, KeyHolds
from .keyed_pack import KeyedPack, KeyNames
from .pack import Evicted, Queue, Sealed, oldest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..ledger import Ledger
    from ..receipt import Resolvable
    from .gatherer import Shape, Wake
    from .holds import Parking
    from .pack import AddGroup, Leftover, Matches, Numbers
    from .window import AddWindow, Scale


T = TypeVar("T")


class KeyedGatherer(Generic[T]):
    """Items in arrival order per key.

    `repeats` allows several items of one key in a batch; `evicts` maintains the state for
    `evict_oldest`.
    """

    def __init__(
        self,
        shape: Shape,
        ledger: Ledger,
        numbers: Numbers,
        window: AddWindow,
        *,
        key: Callable[[T], object],
        repeats: bool,
        evicts: bool,
        parking: Parking,
        wake: Wake,
        breaks: Callable[[BaseException, Sequence[T]], object],
        scale: Scale[T] | None = None,
        odd_keys: bool = False,
    ) -> None:
        self.names: KeyNames[T] = KeyNames(key, odd=odd_keys)
        self.repeats = repeats
        self._lanes: Lanes[Waiting[T]] = Lanes(ages=evicts)
        self.active = self._lanes.active
        self._eras: Eras[T] = Eras()
        self.holds: KeyHolds[T] = KeyHolds(self._lanes, parking, self._eras, ledger, self._begin)
        self._shape = shape
        self._ledger = ledger
        self._numbers = numbers
        self._window = window
        self._wake = wake
        self.breaks = breaks
        self._now = 0.0
        self._queue: Queue[T] = Queue()
        self._moving: Sealed[T] | Sequence[Waiting[T]] = ()
        """Items on their way from one place to another, in case a step fails meanwhile."""
        self.pack: KeyedPack[T] = KeyedPack(self, sized=shape.sized, scale=scale)

    # -- keys --------------------------------------------------------------------------------------

    def identity(self, item: T) -> Hashable:
        """Identify the item's key. Raises `TypeError`, `KeyFailedError` and the key function's
        errors.
        """
        key = self.names.key_of(item)
        known = self.names.known(key)
        if self.holds.refuses and self._lanes.is_held(known):
            raise KeyFailedError(key)
        return known

    def identities(self, items: Sequence[T]) -> tuple[Hashable, ...]:
        """Identify the key of each item, like `identity`."""
        if self.holds.refuses:
            return tuple(map(self.identity, items))
        return self.names.all_known(items)

    # -- the fast path -----------------------------------------------------------------------------

    @property
    def spare(self) -> int:
        """Number of items that the fast path may append; 0 while keys may be refused."""
        if self.holds.refuses:
            return 0
        return self._shape.max_items - 1 - len(self.pack.items)

    def begins(self) -> None:
        """Start the batch's time: the first item follows."""
        self._now = self._wake(False)  # not immediately
        self.pack.begin(self._now)

    def pass_by(self, item: T, key: Hashable) -> None:
        """Put an item into its lane, past the open batch."""
        pack = self.pack
        receipt = pack.receipts.pop(len(pack.items), None) if pack.receipts else None
        era = self._numbers.last + 1
        self._lanes.wait(Waiting(key, item, pack.opened.weighed, receipt, at=self._now, era=era))
        self._window.passed_by()
        if self._lanes.held and self._lanes.is_held(key):
            self.holds.look_at(key)
            if self.holds.spills:
                self._wake(True)  # immediately

    def raised(self, place: int) -> None:
        """Note that the key function raised: the item with this index was not accepted."""
        self.pack.receipts.pop(place, None)

    # -- in ----------------------------------------------------------------------------------------

    def offer(self, group: AddGroup[T], now: float) -> Sequence[Leftover[T]]:
        """Accept items, and seal full batches. The keys are those of `identity`."""
        self._now = now
        if self._shape.max_bytes is None:
            self._offer_together(group, now)
        else:
            self._offer_each(group, now)
        self._ledger.entered(len(group.items), group.bytes)
        return self.holds.failed()

    def _offer_each(self, group: AddGroup[T], now: float) -> None:
        for item, size, receipt, key in group.rows():
            if self._has_place(key, size):
                self._join(item, size, receipt, now, key)
                continue
            era = self._numbers.last + 1
            self.holds.wait([Waiting(key, item, size, receipt, at=now, era=era)])

    def _offer_together(self, group: AddGroup[T], now: float) -> None:
        most, rows = self._shape.max_items, group.rows()
        behind = self.pack.join_free(rows, most, now)
        while len(self.pack.items) >= most:
            self.seal(Reason.SIZE, now)
            behind += self.pack.join_free(rows, most, now)
        era = self._numbers.last + 1
        self.holds.wait(
            [Waiting(key, item, size, r, at=now, era=era) for item, size, r, key in behind]
        )

    def _has_place(self, key: Hashable, size: int) -> bool:
        """Return whether an item may join the open batch; seal that first if it has no room."""
        if key in self.active and key not in self.pack.opened.open_keys:
            return False
        if self.pack.exceeds(self._shape.max_bytes, size):
            self.seal(Reason.BYTES, self._now)
        if key in self.active:  # in the open batch, or in the one just sealed
            return key in self.pack.opened.open_keys
        self.active.add(key)
        return True

    def _join(
        self, item: T, size: int, receipt: Resolvable | None, at: float, key: Hashable
    ) -> None:
        pack, shape = self.pack, self._shape
        pack.join(item, size, receipt, at, key)
        if len(pack.items) >= shape.max_items:
            self.seal(Reason.SIZE, self._now)
        elif shape.max_bytes is not None and pack.bytes >= shape.max_bytes:
            self.seal(Reason.BYTES, self._now)

    def _go_all(self, entries: Sequence[Waiting[T]]) -> None:
        """Begin turns of these items' keys, without a bound on a batch's bytes."""
        most = self._shape.max_items
        if self.repeats:
            entries = self._lanes.with_followers(entries, most - len(self.pack.items), most)
            self._moving = entries
        while entries:
            place = most - len(self.pack.items)
            self.pack.join_all(entries[:place])
            entries = entries[place:]
            self.seal(Reason.SIZE, self._now)

    def seal(self, reason: Reason, now: float) -> None:
        """Seal the open batch, with `SIZE` only a full one; a fence also ends the era."""
        self._now = now
        era = self._numbers.last + 1
        opened = self.pack.opened
        if opened and (reason is not Reason.SIZE or len(opened) >= self._shape.max_items):
            sealed = self.pack.seal(reason, era, now)
            self._queue.batches.append(sealed)
            sealed.keyed(opened.keys, self.names.given(opened.keys), keeps_prefix=self.repeats)
        if reason in FENCES:
            self._eras.end(self._numbers.next(), reason, self._lanes.waiting)

    # -- out ---------------------------------------------------------------------------------------

    def due_at(self) -> float | None:
        """Return the time at which the open batch is due; `None` while it is empty."""
        return self.pack.oldest_at + self._shape.max_delay if self.pack.items else None

    def take(self, now: float) -> Sealed[T] | None:
        """Return the next batch: spilled, of an ended era, the oldest sealed one, or the due one."""
        self._now = now
        taken = self._take_spilled() if self.holds.spills else None
        if taken is None:
            taken = self._take_late() if self._eras.is_ready else self._take_sealed()
        if taken is not None:
            self._moving = taken
            self._ledger.taken(len(taken.items), taken.bytes)
            self._moving = ()
        return taken

    def _take_sealed(self) -> Sealed[T] | None:
        if not self._queue:
            due = self.due_at()
            if due is not None and self._now >= due:
                self.seal(Reason.TIME, self._now)
        if not self._queue:
            return None
        self._moving = taken = self._queue.batches.popleft()
        most = self._shape.max_items
        return taken if len(taken.items) <= most else self._cut(taken, most)

    def _take_spilled(self) -> Sealed[T] | None:
        entries = self.holds.take_spilled(self._shape.max_items)
        if not entries:
            return None
        self._moving = entries
        spilled = self._sealed_from(entries, keeps_prefix=False)
        spilled.spill()
        return spilled

    def _take_late(self) -> Sealed[T]:
        entries = self._eras.take(self._shape.max_items, self._shape.max_bytes)
        self._moving = entries
        return self._sealed_from(entries, keeps_prefix=self.repeats)

    def _sealed_from(self, entries: list[Waiting[T]], *, keeps_prefix: bool) -> Sealed[T]:
        sealed = self._eras.sealed(entries, self._now, sized=self._shape.sized)
        lanes = [entry.lane_key for entry in entries]
        sealed.keyed(lanes, self.names.given(lanes), keeps_prefix=keeps_prefix)
        return sealed

    def _cut(self, batch: Sealed[T], at: int) -> Sealed[T]:
        """Cut a batch. Later items of its keys go back to their lanes; the rest is the next batch."""
        rest, back = batch.indices_from(at)
        self._put_back(batch, back)
        if rest:
            self._queue.batches.appendleft(batch.pick(rest))
        return batch.pick(range(at))

    def _put_back(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Return items to the front of their lanes; their keys' turns continue."""
        self._eras.put_back(self._lanes, batch, indices, self._numbers.last)

    # -- landing -----------------------------------------------------------------------------------

    def done(
        self, batch: Sealed[T], ended: Sequence[int] | None = None, back: Sequence[int] = ()
    ) -> Sequence[Leftover[T]]:
        """Free the keys of `ended` items, by default of all; return the items that fail."""
        if back:
            self._put_back(batch, back)
            self._ledger.put_back(len(back), batch.size_of(back))
        if ended is None:
            self._land(batch)
        else:
            self._settle(batch, ended)
        return self.holds.failed()

    def _settle(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Free the keys of these items, unless they are free already."""
        for index in indices:
            key = batch.lanes[index]
            if key is not LEFT:
                batch.lanes[index] = LEFT
                if self._is_last(batch, key):
                    self._release(key)

    def _is_last(self, batch: Sealed[T], key: Hashable) -> bool:
        return not (self.repeats or batch.spilled) or batch.count_down(key) == 0

    def _land(self, batch: Sealed[T]) -> None:
        entries, held = self._lanes.leave_all(batch.lanes)
        self._moving = entries
        if self._shape.max_bytes is not None or self._eras.is_behind:
            for entry in entries:
                self._go(entry)
        else:
            self._go_all(entries)
        self._moving = ()
        for key in held:
            self.holds.look_at(key)
        batch.lanes[:] = [LEFT] * len(batch.lanes)

    def _release(self, key: Hashable) -> None:
        entry = self._lanes.leave(key)
        if entry is not None:
            self._move(entry)
        elif self._lanes.held and self._lanes.is_held(key):
            self.holds.look_at(key)

    def _begin(self, entry: Waiting[T] | None, now: float) -> None:
        self._now = now
        if entry is not None:
            self._move(entry)

    def _move(self, entry: Waiting[T]) -> None:
        self._moving = (entry,)
        self._go(entry)
        self._moving = ()

    def _go(self, entry: Waiting[T]) -> None:
        """Begin a turn of this item's key."""
        if entry.era <= self._numbers.last:
            most = self._shape.max_items if self.repeats else 1
            self._eras.begin(entry, self._lanes, most, self._shape.max_bytes)
            return
        if self._shape.max_bytes is None:
            self._go_all([entry])
            return
        key = entry.lane_key
        if self.pack.exceeds(self._shape.max_bytes, entry.size):
            self.seal(Reason.BYTES, self._now)
        self._join(entry.item, entry.size, entry.receipt, entry.at, key)
        while key in self.pack.opened.open_keys and (behind := self._lanes.first(key)) is not None:
            if self.pack.exceeds(self._shape.max_bytes, behind.size):
                self.seal(Reason.BYTES, self._now)  # later items must not overtake it
                return
            self._lanes.next(key)
            self._join(behind.item, behind.size, behind.receipt, behind.at, key)

    # -- evicted -----------------------------------------------------------------------------------

    def evict_oldest(self) -> Evicted[T] | None:
        """Evict the first item of the oldest batch, or of an older lane."""
        if self._eras.is_ready:
            entry, is_last = self._eras.pop_item()
            if is_last:
                self._release(entry.lane_key)
            evicted = Evicted(entry.item, entry.size, entry.receipt)
        else:
            waiting, batched = self._lanes.oldest, oldest_of(self._queue, self.pack)
            if waiting is not None and (batched is None or waiting.at < batched):
                self._lanes.drop_first(waiting.lane_key)
                self._eras.left_lane(waiting.era)
                evicted = Evicted(waiting.item, waiting.size, waiting.receipt)
            elif batched is not None:
                evicted = self._evict_batched()
            else:
                return None
        self._ledger.left_queue(1, evicted.size)
        return evicted

    def _evict_batched(self) -> Evicted[T]:
        if self._queue:
            keys: list[Hashable] = self._queue.batches[0].lanes
            key = keys[0]
            is_last = not self.repeats or keys.count(key) == 1
            evicted = self._queue.pop_item()
        else:
            evicted, key, is_last = self.pack.pop_keyed()
        if is_last:
            self._release(key)
        return evicted

    def withdraw(self, matches: Matches, now: float) -> list[Leftover[T]]:
        """Evict the items with matching receipts; keys without further items in batches are free.

        Lanes come first: a key that is released begins its next turn.
        """
        self._now = now

        def is_gone(entry: Waiting[T]) -> bool:
            return entry.receipt is not None and matches(entry.receipt)

        waiting = self._lanes.drop_where(is_gone)
        for entry in waiting:
            self._eras.left_lane(entry.era)
        late = self._eras.withdraw(is_gone)
        parts = self._queue.withdraw(matches)
        opened = self.pack.withdraw(matches, self._numbers.last + 1)
        parts += () if opened is None else (opened,)
        gone = [leftover for part in parts for leftover in part.leftovers()]
        gone += [entry.leftover for entry in (*late, *waiting)]
        size = sum(part.bytes for part in parts) + sum(entry.size for entry in (*late, *waiting))
        self._ledger.left_queue(len(gone), size)
        lanes = [entry.lane_key for entry in late] + [key for part in parts for key in part.lanes]
        if lanes:
            batched = self._batched_keys()
            for key in dict.fromkeys(key for key in lanes if key not in batched):
                self._release(key)
        return gone

    def _batched_keys(self) -> set[Hashable]:
        keys = self._eras.ready_keys().union(self.pack.opened.keys)
        return keys.union(*(batch.lanes for batch in self._queue.batches))

    def resubmit(self, group: AddGroup[T], now: float) -> Sequence[Leftover[T]]:
        """Accept items of one key in front of its lane; a hold remains."""
        self._now = now
        ((key, *_), opened) = group.keys or (None,), self.pack.opened
        if key not in self.active or key in opened.open_keys:
            return self.offer(group, now)
        self._ledger.entered(len(group.items), group.bytes)
        self._eras.put_in_front(self._lanes, group, key, now, self._numbers.last)
        return self.holds.failed()

    def clear(self, now: float) -> list[Leftover[T]]:
        """Evict all queued items, in order per key."""
        late, waiting = self._eras.clear(), self._lanes.clear()
        moving, self._moving = self._moving, ()
        self.seal(Reason.SHUTDOWN, now)
        size = sum(entry.size for entry in (*late, *waiting))
        size += sum(batch.bytes for batch in self._queue.batches)
        batched = (key for batch in self._queue.batches for key in batch.lanes)
        for key in {*(entry.lane_key for entry in late), *batched}:
            self._lanes.leave(key)
        gone = [entry.leftover for entry in late] + self._queue.clear()
        gone += [entry.leftover for entry in waiting]
        if moving:
            gone += self._lost(moving, gone)
        self._ledger.left_queue(len(gone), size)
        return gone

    @staticmethod
    def _lost(
        moving: Sealed[T] | Sequence[Waiting[T]], found: Sequence[Leftover[T]]
    ) -> list[Leftover[T]]:
        """Return the items that a failed step has left between two places."""
        known = {(id(each.item), id(each.receipt)) for each in found}
        given = moving.leftovers() if isinstance(moving, Sealed) else [e.leftover for e in moving]
        return [each for each in given if (id(each.item), id(each.receipt)) not in known]

    # -- state -------------------------------------------------------------------------------------

    def queued_until(self, number: int) -> int:
        """Count the queued items of eras up to this number, without those of held keys."""
        return self._queue.until(number) + self._eras.until(number) - self.holds.until(number)

    @property
    def is_ready(self) -> bool:
        """Whether a batch is ready, regardless of the time."""
        return bool(self._queue) or self._eras.is_ready or self.holds.spills

    def snapshot(self) -> Snapshot:
        """Return the current counts; without `evicts`, from every lane."""
        ages = [*self._eras.ages(), *(entry.at for entry in self._lanes.firsts())]
        if (batched := oldest_of(self._queue, self.pack)) is not None:
            ages.append(batched)
        return Snapshot(len(self.pack.items), len(self._queue), min(ages, default=None))
