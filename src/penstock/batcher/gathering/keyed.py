"""The keyed accumulator: many keys in a batch, a key in at most one batch at a time.

It is a plain accumulator of what may go, and lanes for what may not go yet. It answers the same
five questions:

- `offer` puts an item into the open batch if its key is idle; otherwise it waits in its key's lane,
  where it neither starts the time of a batch nor fills one;
- `due_at` is about the open batch, whose age is that of its oldest item, also of one that has
  waited in a lane before;
- `take` gives the oldest sealed batch, or the open one if it is due;
- `done` ends the turns of a batch's keys, so that the next of their lanes come into the open batch.
  `settled` does so for items that have ended while others of their batch back off: a key that backs
  off holds back only itself;
- `evict_oldest` gives up an item of the oldest batch, or the first of a lane that is older.

1. A batch has one item of a key, or with `repeats` any number of them, in order.
2. `seal(MANUAL)` is a fence through all lanes. It ends an *era*; a batch's number is the number of
   its era, and no batch mixes two. So what came later goes along with nothing that the fence
   covers, and what has waited in a lane since before it does not linger.
3. A key is free when all its items in a batch have ended and the batch is not at its destination.
   What was cut off has not ended until its write has: it may still take effect.
4. With `repeats`, what stands behind a failed item of its key in a batch waits again, and goes
   after it (`put_back`).
5. A key of which an item was handed back `unsent` sends nothing more: what comes after it is handed
   back as well. What happens after one that failed for good is said in `parking`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..._core.errors import KeyFailedError
from ..._core.lineage import Reason
from ..._core.order.keys import PLAIN, identity, shown
from ..._core.order.lanes import Entry, Lanes
from .keyed_open_batch import KeyedOpenBatch
from .plain import Evicted, Leftover, PlainAccumulator, Sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..._core.order.parking import Parking
    from ..receipt import ReceiptBase

T = TypeVar("T")

_LEFT = object()
"""In place of a key whose item has left its batch."""


class Waiting(Entry, Generic[T]):
    """An item in its lane, with what belongs to it."""

    __slots__ = ("at", "era", "item", "receipt")

    def __init__(
        self, key: Hashable, item: T, size: int, receipt: ReceiptBase | None, *, at: float, era: int
    ) -> None:
        self.key = key  # all in one: it is made for every item that waits
        self.size = size
        self.behind = None
        self.item = item
        self.receipt = receipt
        self.at = at
        self.era = era


@dataclass(slots=True)
class KeyedBatch(Sealed[T]):
    """A batch whose items have keys."""

    lanes: list[object] = field(default_factory=list[object])
    """The items' keys, as lanes know them."""
    counts: Counter[object] | None = None
    """How many items of each key have not ended, once some have."""


class KeyedAccumulator(PlainAccumulator[T]):
    """Items in arrival order per key. Times are monotonic seconds, given by the caller.

    `key` gives an item's key; `repeats` lets a batch have several items of one key; `evicts` keeps
    what `evict_oldest` needs.
    """

    keeps_order = True

    def __init__(
        self,
        *,
        key: Callable[[T], object],
        max_items: int,
        max_bytes: int | None,
        max_delay: float,
        sized: bool,
        repeats: bool,
        evicts: bool,
        parking: Parking,
    ) -> None:
        self.lanes: Lanes[Waiting[T]] = Lanes(ages=evicts)
        self.now = 0.0
        """The last time that anybody told."""
        self.key = key
        self.parking = parking
        self.holds_keys = parking.holds
        self._failed: list[Waiting[T]] = []
        self.begun: Callable[[], None] = _nothing
        """Called when the short way in has put the first item into the open batch."""
        self.passed: Callable[[], None] = _nothing
        """Called when the short way in has put an item into a lane, past the open batch."""
        self.over: Callable[[], None] = _nothing
        """Called when that lane holds more than it may."""
        self.raised: Callable[[BaseException], object] = _ignored
        """Called with what the key function has raised on the short way in."""
        self.repeats = repeats
        """Whether a batch may have several items of one key."""
        self._earlier: dict[int, int] = {}
        """Per era that has ended, how many of it wait in lanes."""
        self._reasons: dict[int, Reason] = {}
        self._late: dict[int, deque[list[Waiting[T]]]] = {}
        """What may go of eras that have ended: per era, and within it per key."""
        self._late_items = 0
        self._late_bytes = 0
        self.odd_keys = False
        """Whether the keys that lanes know may be others than those that were given."""
        self.is_stopping = False
        """Whether what is held now is handed back soon: it does not fail then."""
        super().__init__(max_items=max_items, max_bytes=max_bytes, max_delay=max_delay, sized=sized)

    def _fresh(self) -> None:
        super()._fresh()
        self._door = KeyedOpenBatch(self)
        self.items: list[T] = self._door

    # -- what waits --------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Items that no worker has taken."""
        return super().queued + self.lanes.waiting + self._late_items

    @property
    def queued_bytes(self) -> int:
        """Their size; 0 where nothing measures it."""
        return super().queued_bytes + self.lanes.waiting_size + self._late_bytes

    @property
    def is_ready(self) -> bool:
        """Whether there is a batch that may go, whatever the time."""
        return bool(self._sealed or self._late) or (
            self.holds_keys and self.parking.spills and not self.is_stopping
        )

    @property
    def held(self) -> int:
        """Items in lanes that are held."""
        return (
            sum(lane.length for _, lane in self.lanes.lanes() if lane.held)
            if self.lanes.held
            else 0
        )

    @property
    def held_keys(self) -> int:
        """Keys of which nothing goes."""
        return self.lanes.held

    @property
    def oldest_at(self) -> float | None:
        """When the oldest item here was accepted. Looks at every lane, unless `evicts`."""
        if (oldest := self.lanes.oldest) is not None:
            ages = [oldest.at]
        else:
            ages = [lane.first.at for _, lane in self.lanes.lanes() if lane.first is not None]
        ages += [group[0].at for groups in tuple(self._late.values()) for group in tuple(groups)]
        known = super().oldest_at
        return min(ages, default=known) if known is None else min([known, *ages])

    def queued_until(self, number: int) -> int:
        """Items of eras up to this number that no worker has taken, and nobody holds."""
        behind = sum(count for era, count in self._earlier.items() if era <= number)
        late = sum(
            len(group) for era, groups in self._late.items() if era <= number for group in groups
        )
        return super().queued_until(number) + behind + late - self.held_until(number)

    def held_until(self, number: int) -> int:
        """Items of eras up to this number that are held."""
        if not self.lanes.held:
            return 0
        return sum(
            1
            for _, lane in self.lanes.lanes()
            if lane.held
            for entry in lane
            if entry.era <= number
        )

    # -- in ----------------------------------------------------------------------------------------

    def identity(self, item: T) -> Hashable:
        """What stands for the item's key.

        Raises `TypeError` for what cannot be one, `KeyFailedError` for one that takes no more
        items, and whatever the key function raises.
        """
        key = self.key(item)
        known = self.known(key)
        if self.lanes.held and self.parking.fails and self.lanes.is_held(known):
            raise KeyFailedError(key)
        return known

    def known(self, key: object) -> Hashable:
        """What stands for a key."""
        if type(key) in PLAIN:
            return cast("Hashable", key)
        self.odd_keys = True
        return identity(key)

    @property
    def spare(self) -> int:
        """How many items may come in by the short way before anything follows from that."""
        if self.lanes.held and self.parking.fails:
            return 0  # the long way in looks whether a key has failed
        return self.max_items - 1 - len(self.items)

    def begin(self, now: float) -> None:
        """The open batch has begun just now."""
        self.now = self._oldest_at = now

    def offer(
        self, item: T, size: int, receipt: ReceiptBase | None, now: float, key: Hashable = None
    ) -> None:
        """Take an item in; seal what that makes full. `key` is what `identity` says of it."""
        self.now = now
        if self._has_place(key, size):
            self._join(item, size, receipt, now, key)
        else:
            self.wait(Waiting(key, item, size, receipt, at=now, era=self.last_number + 1))

    def pass_by(self, item: T, key: Hashable) -> None:
        """Put an item that came by the short way into its lane, past the open batch."""
        receipt = self.receipts.pop(len(self.items), None) if self.receipts else None
        self.lanes.wait(Waiting(key, item, 0, receipt, at=self.now, era=self.last_number + 1))
        if self.lanes.held and self.lanes.is_held(key):
            self._look_at(key)
        self.passed()
        if self.parking.spills:
            self.over()

    def wait(self, entry: Waiting[T]) -> None:
        """Put an item at the end of its lane."""
        self.lanes.wait(entry)
        if self.lanes.held and self.lanes.is_held(entry.key):
            self._look_at(entry.key)

    def offer_all(self, items: Sequence[T], now: float) -> None:
        """As `offer` of one after the other, for items without size or receipt."""
        for item in items:
            self.offer(item, 0, None, now, self.identity(item))

    def _has_place(self, key: Hashable, size: int) -> bool:
        """Whether an item may join the open batch, which is sealed first if that is too full for
        it.
        """
        is_full = (
            self._max_bytes is not None and self.items and self._open_bytes + size > self._max_bytes
        )
        if is_full and (key in self._door.open_keys or key not in self.lanes.active):
            self.seal(Reason.BYTES, self.now)
        if key in self._door.open_keys:
            return True
        if key in self.lanes.active:
            return False
        self.lanes.active.add(key)
        return True

    def _join(
        self, item: T, size: int, receipt: ReceiptBase | None, at: float, key: Hashable
    ) -> None:
        if not self.items or at < self._oldest_at:
            self._oldest_at = at
        if receipt is not None:
            self.receipts[len(self.items)] = receipt
        self._door.join(item)
        self._door.keys.append(key)
        if self.repeats:
            self._door.open_keys.add(key)
        if self._sizes is not None:
            self._sizes.append(size)
            self._open_bytes += size
        if len(self.items) >= self.max_items:
            self.seal(Reason.SIZE, self.now)
        elif self._max_bytes is not None and self._open_bytes >= self._max_bytes:
            self.seal(Reason.BYTES, self.now)

    def _join_all(self, entries: Sequence[Waiting[T]]) -> None:
        """As `_join` of one after the other, for items that nothing measures; where a batch may
        repeat keys it has theirs already.
        """
        while entries:
            filled = len(self.items)
            fitting, entries = (
                entries[: self.max_items - filled],
                entries[self.max_items - filled :],
            )
            oldest_at = min([entry.at for entry in fitting])
            if not filled or oldest_at < self._oldest_at:
                self._oldest_at = oldest_at
            for place, entry in enumerate(fitting, filled):
                if entry.receipt is not None:
                    self.receipts[place] = entry.receipt
            self.items.extend([entry.item for entry in fitting])
            self._door.keys.extend([entry.key for entry in fitting])
            if len(self.items) >= self.max_items:
                self.seal(Reason.SIZE, self.now)

    def seal(self, reason: Reason, now: float) -> None:
        """End the open batch, if it holds anything; `MANUAL` and `SHUTDOWN_REQUEST` are for all
        that waits behind its keys, too.
        """
        self.now = now
        era = self.last_number + 1
        if self.items:
            self._sealed.append(
                KeyedBatch(
                    items=self.items[:],
                    reason=reason,
                    number=era,
                    oldest_at=self._oldest_at,
                    sealed_at=now,
                    receipts=self.receipts,
                    sizes=self._sizes,
                    bytes=self._open_bytes,
                    keys=self._names(self._door.keys),
                    lanes=cast("list[object]", self._door.keys),
                    keeps_prefix=self.repeats,
                )
            )
            self._sealed_items += len(self.items)
            self._fresh()
        if reason in {Reason.MANUAL, Reason.SHUTDOWN_REQUEST}:
            waiting = self.lanes.waiting - sum(self._earlier.values())
            if waiting:
                self._earlier[era] = waiting
                self._reasons[era] = reason
            self.last_number = era

    def _names(self, keys: Sequence[Hashable]) -> list[object]:
        """The keys as they were given."""
        return [shown(key) for key in keys] if self.odd_keys else list(keys)

    # -- out ---------------------------------------------------------------------------------------

    def take(self, now: float) -> Sealed[T] | None:
        """The next batch that may go: of an era that has ended, or the oldest sealed one, or the
        open one if it is due.
        """
        self.now = now
        if (
            self.parking.spills
            and not self.is_stopping
            and (spilled := self._take_spilled()) is not None
        ):
            return spilled
        return self._take_late() if self._late else super().take(now)

    def _take_spilled(self) -> KeyedBatch[T] | None:
        """The oldest of a key that holds too much, for the dead letters."""
        over = self.parking.next(self.lanes)
        if over is None:
            return None
        key, count = over
        entries = self.lanes.take_held(key, min(count, self.max_items))
        for entry in entries:
            self._waits_no_longer(entry.era, 1)
        return replace(self._sealed_from(entries, entries[0].era), keeps_prefix=False, spilled=True)

    def _take_late(self) -> KeyedBatch[T]:
        """What may go of the earliest era that has ended, as much as fits. A key's items are never
        torn apart.
        """
        era = min(self._late)
        groups = self._late[era]
        entries = groups.popleft()
        size = sum(entry.size for entry in entries)
        while groups and len(entries) + len(groups[0]) <= self.max_items:
            more = sum(entry.size for entry in groups[0])
            if self._max_bytes is not None and size + more > self._max_bytes:
                break
            entries += groups.popleft()
            size += more
        if not groups:
            del self._late[era]
        self._late_items -= len(entries)
        self._late_bytes -= size
        return self._sealed_from(entries, era)

    def _sealed_from(self, entries: list[Waiting[T]], era: int) -> KeyedBatch[T]:
        keys: list[object] = [entry.key for entry in entries]
        return KeyedBatch(
            items=[entry.item for entry in entries],
            reason=self._reasons.get(era, Reason.MANUAL),
            number=era,
            oldest_at=min(entry.at for entry in entries),
            sealed_at=self.now,
            receipts={
                index: entry.receipt
                for index, entry in enumerate(entries)
                if entry.receipt is not None
            },
            sizes=[entry.size for entry in entries] if self._sized else None,
            bytes=sum(entry.size for entry in entries),
            keys=self._names(cast("list[Hashable]", keys)),
            lanes=keys,
            keeps_prefix=self.repeats,
        )

    def _cut(self, batch: Sealed[T], at: int) -> tuple[Sealed[T], Sealed[T]]:
        """In two, but no key: what is behind the cut and has its key before it goes back to its
        lane.
        """
        assert isinstance(batch, KeyedBatch)
        lanes = cast("list[Hashable]", batch.lanes)
        head_keys = set(lanes[:at])
        back: dict[Hashable, list[Waiting[T]]] = {}
        keep = list(range(at))
        for index in range(at, len(lanes)):
            key = lanes[index]
            if key not in head_keys:
                keep.append(index)
                continue
            back.setdefault(key, []).append(self._waiting_again(batch, index))
        for key, entries in back.items():
            self._put_back(key, entries)
        self._sealed_items -= len(lanes) - len(keep)
        return self._pick(batch, keep[:at]), self._pick(batch, keep[at:])

    def _pick(self, batch: KeyedBatch[T], indices: Sequence[int]) -> KeyedBatch[T]:
        sizes = None if batch.sizes is None else [batch.sizes[index] for index in indices]
        keys = [batch.lanes[index] for index in indices]
        return replace(
            batch,
            items=[batch.items[index] for index in indices],
            receipts={
                place: batch.receipts[index]
                for place, index in enumerate(indices)
                if index in batch.receipts
            },
            sizes=sizes,
            bytes=sum(sizes or ()),
            keys=self._names(cast("list[Hashable]", keys)),
            lanes=keys,
        )

    def _put_back(self, key: Hashable, entries: list[Waiting[T]]) -> None:
        """What belongs to a turn of this key is in front of its lane again."""
        self.lanes.put_back(key, entries)
        for entry in entries:
            if entry.era <= self.last_number:
                self._earlier[entry.era] = self._earlier.get(entry.era, 0) + 1

    def settled(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """These items have ended, while others of the batch back off: their keys are free. Those
        told of before are passed over.
        """
        assert isinstance(batch, KeyedBatch)
        for index in indices:
            key = batch.lanes[index]
            if key is not _LEFT:
                batch.lanes[index] = _LEFT
                if self._is_last(batch, key):
                    self._release(cast("Hashable", key))

    def _is_last(self, batch: KeyedBatch[T], key: object) -> bool:
        if not self.repeats and not batch.spilled:
            return True
        if batch.counts is None:
            batch.counts = Counter(batch.lanes)
            batch.counts[key] += 1
        batch.counts[key] -= 1
        return not batch.counts[key]

    def stop(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Nothing that comes after these items in their lanes goes on, until `let_go`."""
        assert isinstance(batch, KeyedBatch)
        for index in indices:
            key = batch.lanes[index]
            if key is not _LEFT:
                self.lanes.hold(cast("Hashable", key))

    def let_go(self, key: Hashable, now: float) -> int:
        """What is held of this key may go; return how many that are. Without any it is idle
        again.
        """
        self.now = now
        lane = self.lanes.lane(key)
        count = 0 if lane is None or not lane.held else lane.length
        entry = self.lanes.let_go(key)
        if entry is not None:
            self._go(entry)
        return count

    def begin_stop(self) -> None:
        """What is held now is handed back soon."""
        self.is_stopping = True

    def failed(self) -> list[Leftover[T]]:
        """What fails because an earlier item of its key has; each is told of once."""
        if not self._failed:
            return []
        gone, self._failed = self._failed, []
        return list(map(_leftover, gone))

    def put_back(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """These items were not applied, since an earlier one of their key failed: they wait for
        their turn again, in front of their lanes.
        """
        assert isinstance(batch, KeyedBatch)
        back: dict[Hashable, list[Waiting[T]]] = {}
        for index in indices:
            back.setdefault(cast("Hashable", batch.lanes[index]), []).append(
                self._waiting_again(batch, index)
            )
        for key, entries in back.items():
            self._put_back(key, entries)

    def _waiting_again(self, batch: KeyedBatch[T], index: int) -> Waiting[T]:
        size = batch.sizes[index] if batch.sizes is not None else 0
        key = cast("Hashable", batch.lanes[index])
        return Waiting(
            key,
            batch.items[index],
            size,
            batch.receipts.get(index),
            at=batch.oldest_at,
            era=batch.number,
        )

    def done(self, batch: Sealed[T], failed: Sequence[int]) -> None:
        """A batch has ended: its keys are free."""
        assert isinstance(batch, KeyedBatch)
        entries, held = self.lanes.leave_all(cast("list[Hashable]", batch.lanes))
        if self.repeats or self._sized or self._earlier:
            for entry in entries:
                self._go(entry)
        else:
            self._join_all(entries)
        for key in held:
            self._look_at(key)
        batch.lanes = [_LEFT] * len(batch.lanes)

    def _release(self, key: Hashable) -> None:
        entry = self.lanes.leave(key)
        if entry is not None:
            self._go(entry)
        elif self.lanes.held and self.lanes.is_held(key):
            self._look_at(key)

    def _look_at(self, key: Hashable) -> None:
        """A held lane has more, or its turn has ended: see whether it fails, or spills."""
        lane = self.lanes.lane(key)
        if self.parking.fails and not self.is_stopping and lane is not None and not lane.going:
            dropped = self.lanes.drop_all(key)
            for entry in dropped:
                self._waits_no_longer(entry.era, 1)
            self._failed += dropped
        self.parking.look_at(key, lane)

    def _go(self, entry: Waiting[T]) -> None:
        """A turn of this item's key begins."""
        if entry.era <= self.last_number:
            self._go_late(entry)
            return
        key = entry.key
        if (
            self._max_bytes is not None
            and self.items
            and self._open_bytes + entry.size > self._max_bytes
        ):
            self.seal(Reason.BYTES, self.now)
        self._join(entry.item, entry.size, entry.receipt, entry.at, key)
        if not self.repeats:
            return
        if not self._sized:
            if key in self._door.open_keys:
                self._join_all(self.lanes.next_many(key, self.max_items - len(self.items)))
            return
        while key in self._door.open_keys and (behind := self.lanes.first(key)) is not None:
            if self._max_bytes is not None and self._open_bytes + behind.size > self._max_bytes:
                self.seal(Reason.BYTES, self.now)  # what comes later must not overtake it
                return
            self.lanes.next(key)
            self._join(behind.item, behind.size, behind.receipt, behind.at, key)

    def _go_late(self, entry: Waiting[T]) -> None:
        group = [entry]
        size = entry.size
        while self.repeats and len(group) < self.max_items:
            behind = self.lanes.first(entry.key)
            if (
                behind is None
                or behind.era != entry.era
                or (self._max_bytes is not None and size + behind.size > self._max_bytes)
            ):
                break
            self.lanes.next(entry.key)
            group.append(behind)
            size += behind.size
        self._waits_no_longer(entry.era, len(group))
        self._late.setdefault(entry.era, deque()).append(group)
        self._late_items += len(group)
        self._late_bytes += size

    def _waits_no_longer(self, era: int, count: int) -> None:
        if era in self._earlier:
            self._earlier[era] -= count
            if not self._earlier[era]:
                del self._earlier[era]

    # -- given up ----------------------------------------------------------------------------------

    def evict_oldest(self) -> Evicted[T] | None:
        """Give up the first item of the oldest batch, or the first of a lane if that is older;
        `None` if nothing waits.
        """
        if self._late:
            return self._evict_late()
        waiting = self.lanes.oldest
        batched = super().oldest_at
        if waiting is not None and (batched is None or waiting.at < batched):
            self.lanes.drop_first(waiting.key)
            self._waits_no_longer(waiting.era, 1)
            return Evicted(waiting.item, waiting.size, waiting.receipt)
        if batched is None:
            return None
        key = self._drop_first_key()
        evicted = super().evict_oldest()
        if key is not _LEFT:
            self._release(cast("Hashable", key))
        return evicted

    def _drop_first_key(self) -> object:
        """The key of the first item of the oldest batch, if that is its only one there."""
        keys: list[Any] = self._door.keys
        if self._sealed:
            batch = cast("KeyedBatch[T]", self._sealed[0])
            keys = batch.lanes
            if batch.keys is not None:
                batch.keys.pop(0)
        key = keys.pop(0)
        if self.repeats and key in keys:
            return _LEFT
        if not self._sealed:
            self._door.open_keys.discard(key)
        return key

    def _evict_late(self) -> Evicted[T]:
        era = min(self._late)
        groups = self._late[era]
        entry = groups[0].pop(0)
        if not groups[0]:
            groups.popleft()
            if not groups:
                del self._late[era]
            self._release(entry.key)
        self._late_items -= 1
        self._late_bytes -= entry.size
        return Evicted(entry.item, entry.size, entry.receipt)

    def clear(self, now: float) -> list[Leftover[T]]:
        """Give up everything that no worker has taken; the items of each key in their order."""
        late = [entry for era in sorted(self._late) for group in self._late[era] for entry in group]
        waiting = self.lanes.clear()
        self._late.clear()
        self._late_items = self._late_bytes = 0
        self._earlier.clear()
        self.seal(Reason.SHUTDOWN, now)
        free = {entry.key for entry in late}
        for batch in self._sealed:
            free.update(cast("list[Hashable]", cast("KeyedBatch[T]", batch).lanes))
        for key in free:
            self.lanes.leave(key)
        batched = super().clear(now)
        return [*map(_leftover, late), *batched, *map(_leftover, waiting)]


def _leftover(entry: Waiting[T]) -> Leftover[T]:
    return Leftover(entry.item, entry.receipt, entry.era, entry.size)


def _ignored(_: BaseException) -> None:
    """No log is attached."""


def _nothing() -> None:
    """Nobody wants to know."""
