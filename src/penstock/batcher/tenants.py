"""Tenants: a batch belongs to one tenant, and flush slots are shared fairly among those who have something to send.

An accumulator per tenant answers the five questions for its own items; this one asks the tenant whose turn it is.

1. Turns go by deficit round robin. Whoever comes to the front without credit gets `quantum` times its weight. It sends while it has credit,
   from which each batch is taken (its bytes where items are measured, else its items), and goes to the back without. So over any stretch in
   which two tenants have something to send, what they sent differs from their weights' ratio by a turn of each at most.
2. A quantum is a full batch, so a tenant of weight 1 has something to send at each of its turns. Credit is not saved: a tenant with nothing
   to send loses it. What it owes stays for as long as it has items inside.
3. One heap holds the times at which tenants' open batches are due; what has become stale in it is passed over.
4. A tenant has an entry only while an item of its is inside: queued, in flight or backing off. Nothing is left of an idle one.
5. With one worker and no keys a tenant has one batch in flight at most, also while that backs off, so its items are in order; its slot
   serves the others meanwhile.
6. Batch numbers count over all tenants, so that a fence stands for a moment and not for a tenant.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from .._core.batch import Reason
from .._core.errors import ItemTooLarge
from .._core.keys import identity, shown
from .accumulator import Evicted, Leftover, PlainAccumulator, Sealed
from .room import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from .accumulator import Accumulator
    from .receipt import Slip

T = TypeVar("T")


class Belonging(NamedTuple):
    """Whose an item is, and its key there."""

    tenant: Hashable
    key: Hashable


class Share(Generic[T]):
    """One tenant that has items inside."""

    __slots__ = ("accumulator", "credit", "due", "flying", "has_turn", "inside", "room", "serial", "tenant", "weight")

    def __init__(self, tenant: Hashable, accumulator: Accumulator[T], weight: float, room: Room, serial: int) -> None:
        self.tenant = tenant
        self.accumulator = accumulator
        self.weight = weight
        self.room = room
        """Its part of the ledger."""
        self.serial = serial
        """Entries are told apart by it, and are waited for in its order."""
        self.inside = 0
        """Items that have not left the ledger; those of a flight leave together, when it has ended."""
        self.flying = 0
        """Batches in flight or backing off."""
        self.credit = 0.0
        self.has_turn = False
        """Whether it stands in the ring."""
        self.due: float | None = None
        """The time for which it stands in the heap."""


class Want(NamedTuple, Generic[T]):
    """What a tenant's part of the ledger is to take in."""

    share: Share[T]
    items: int
    size: int


class Tenanted(PlainAccumulator[T]):
    """A tenant's items in arrival order. Its batches' numbers count over all tenants."""

    def __init__(self, house: TenantAccumulator[T], *, max_items: int, max_bytes: int | None, max_delay: float, sized: bool) -> None:
        super().__init__(max_items=max_items, max_bytes=max_bytes, max_delay=max_delay, sized=sized)
        self._house = house

    def seal(self, reason: Reason, now: float) -> None:
        """End the open batch, if it holds anything."""
        self.last_number = self._house.last_number
        super().seal(reason, now)
        self._house.last_number = self.last_number


class TenantAccumulator(Generic[T]):
    """Items per tenant. Times are monotonic seconds, given by the caller.

    `make` gives a tenant's own accumulator; `tenant` an item's tenant; `weight` a tenant's
    share; `key` an item's key as `identity` has it, or `None`; `serial` holds a tenant to one batch at a time.
    """

    def __init__(
        self,
        make: Callable[[TenantAccumulator[T]], Accumulator[T]],
        *,
        tenant: Callable[[T], object],
        key: Callable[[T], Hashable],
        weight: Callable[[object], float],
        quantum: float,
        sized: bool,
        serial: bool,
        max_items: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._make = make
        self._tenant = tenant
        self._key = key
        self._weight = weight
        self._quantum = quantum
        self._sized = sized
        self._serial = serial
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._shares: dict[Hashable, Share[T]] = {}
        self._ring: deque[Share[T]] = deque()
        self._heap: list[tuple[float, int, Share[T]]] = []
        self._count = itertools.count()
        self._nothing: list[T] = []
        self.queued = 0
        """Items that no worker has taken."""
        self.queued_bytes = 0
        """Their size; 0 where nothing measures it."""
        self.last_number = 0
        """The number of the batch sealed last."""
        self.receipts: dict[int, Slip] = {}
        """Never filled: there is no short way in."""
        self.spare = 0
        """None may come in by the short way: everybody's tenant has to be looked at."""

    # -- what is inside -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many tenants have something inside."""
        return len(self._shares)

    def _each(self) -> Iterator[Accumulator[T]]:
        return (share.accumulator for share in tuple(self._shares.values()))

    @property
    def held(self) -> int:
        """Items in lanes that are held."""
        return sum(accumulator.held for accumulator in self._each())

    @property
    def sealed(self) -> int:
        """Sealed batches that no worker has taken."""
        return sum(accumulator.sealed for accumulator in self._each())

    @property
    def open_items(self) -> int:
        """Items in open batches."""
        return sum(accumulator.open_items for accumulator in self._each())

    @property
    def oldest_at(self) -> float | None:
        """When the oldest item here was accepted. Looks at every tenant."""
        return min((at for accumulator in self._each() if (at := accumulator.oldest_at) is not None), default=None)

    def queued_until(self, number: int) -> int:
        """Items up to this batch number that no worker has taken, and nobody holds."""
        return sum(accumulator.queued_until(number) for accumulator in self._each())

    def held_until(self, number: int) -> int:
        """Items up to this batch number that are held."""
        return sum(accumulator.held_until(number) for accumulator in self._each())

    # -- in -----------------------------------------------------------------------------------------------------------

    def identity(self, item: T) -> Belonging:
        """Whose an item is. Raises `TypeError` for what cannot be a tenant or a key, and whatever those functions raise."""
        return Belonging(identity(self._tenant(item)), self._key(item))

    def way_in(self) -> list[T]:
        """There is no short way in."""
        return self._nothing

    def lacking(self, keys: Iterable[Hashable], sizes: Iterable[int]) -> list[Want[T]]:
        """The tenants whose part of the ledger cannot take in so much now, in the order in which they are to be waited for.

        Raises `ItemTooLarge` for what a tenant's part could never take in.
        """
        if self._max_items is None and self._max_bytes is None:
            return []
        wanted: dict[Hashable, tuple[int, int]] = {}
        for key, size in zip(keys, sizes, strict=True):
            tenant = _tenant_of(key)
            items, total = wanted.get(tenant, (0, 0))
            wanted[tenant] = (items + 1, total + size)
        found: list[Want[T]] = []
        for tenant, (items, size) in wanted.items():
            share = self._shares.get(tenant)
            room = self._room() if share is None else share.room
            if not room.could_ever_fit(items, size):
                caps = f"tenants' max_pending_items={self._max_items}, max_pending_bytes={self._max_bytes}"
                raise ItemTooLarge(f"{items} items of {size} bytes can never fit for tenant {shown(tenant)!r}: {caps}")
            if share is not None and (room.contended or not room.fits(share.inside, items, size)):
                found.append(Want(share, items, size))
        return sorted(found, key=lambda want: want.share.serial)

    def offer(self, item: T, size: int, receipt: Slip | None, now: float, key: Hashable) -> None:
        """Take an item in; `key` is what `identity` says of it."""
        tenant = _tenant_of(key)
        share = self._share(tenant)
        share.accumulator.offer(item, size, receipt, now, key.key if isinstance(key, Belonging) else None)
        share.inside += 1
        share.room.bytes_inside += size
        self.queued += 1
        self.queued_bytes += size
        self._changed(share)

    def offer_all(self, items: Sequence[T], now: float) -> None:
        """As `offer` of one after the other, for items without size or receipt."""
        for item in items:
            self.offer(item, 0, None, now, self.identity(item))

    def begin(self, now: float) -> None:
        """Nobody comes in by a short way."""

    def _share(self, tenant: Hashable) -> Share[T]:
        share = self._shares.get(tenant)
        if share is None:
            weight = self._weight(shown(tenant))
            share = self._shares[tenant] = Share(tenant, self._make(self), weight, self._room(), next(self._count))
        return share

    def _room(self) -> Room:
        return Room(sys.maxsize if self._max_items is None else self._max_items, self._max_bytes)

    def _changed(self, share: Share[T]) -> None:
        """See whether a tenant has something to send, or when it will."""
        accumulator = share.accumulator
        self.last_number = max(self.last_number, accumulator.last_number)
        if accumulator.is_ready:
            self._give_turn(share)
        due = accumulator.due_at()
        if due is not None and due != share.due:
            share.due = due
            heapq.heappush(self._heap, (due, next(self._count), share))

    def _give_turn(self, share: Share[T]) -> None:
        if not share.has_turn and not (self._serial and share.flying):
            share.has_turn = True
            self._ring.append(share)

    # -- when -----------------------------------------------------------------------------------------------------------

    def seal(self, reason: Reason, now: float) -> None:
        """End open batches: under pressure the oldest one, otherwise all of them."""
        if reason is Reason.PRESSURE:
            share = self._first_due()
            if share is not None:
                self._seal(share, reason, now)
            return
        for share in tuple(self._shares.values()):
            self._seal(share, reason, now)

    def _seal(self, share: Share[T], reason: Reason, now: float) -> None:
        share.accumulator.seal(reason, now)
        self._changed(share)

    def _first_due(self) -> Share[T] | None:
        """Whose open batch is due first. What stands in the heap and is no longer so goes out of it."""
        while self._heap:
            due, _, share = self._heap[0]
            if share.due == due and share.accumulator.due_at() == due:
                return share
            heapq.heappop(self._heap)
            if share.due == due:
                share.due = None
        return None

    def due_at(self) -> float | None:
        """When the first open batch is due, of those whose tenants may send; `None` while all are empty."""
        share = self._first_due()
        return None if share is None else share.due

    # -- out ----------------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Sealed[T] | None:
        """The next batch of the tenant whose turn it is; `None` if nobody has anything to send."""
        self._wake(now)
        while self._ring:
            share = self._ring[0]
            if share.credit <= 0:
                share.credit += self._quantum * share.weight
                if share.credit <= 0:
                    self._ring.rotate(-1)
                    continue
            batch = None if self._serial and share.flying else share.accumulator.take(now)
            if batch is None:
                self._lose_turn(share)
                continue
            self.last_number = max(self.last_number, share.accumulator.last_number)
            batch.tenant = shown(share.tenant)
            batch.share = share
            share.flying += 1
            share.credit -= max(batch.bytes, 1) if self._sized else len(batch.items)
            if share.credit <= 0:
                self._ring.rotate(-1)
            self.queued -= len(batch.items)
            self.queued_bytes -= batch.bytes
            return batch
        return None

    def _wake(self, now: float) -> None:
        """Give a turn to everybody whose open batch is due."""
        while (share := self._first_due()) is not None and share.due is not None and share.due <= now:
            heapq.heappop(self._heap)
            share.due = None
            self._give_turn(share)

    def _lose_turn(self, share: Share[T]) -> None:
        self._ring.popleft()
        share.has_turn = False
        share.credit = min(share.credit, 0.0)

    def settled(self, batch: Sealed[T], indices: Sequence[int]) -> bool:
        """Items have ended while others of their batch go on; say whether something may go that could not before."""
        share = self._owner(batch)
        freed = share.accumulator.settled(batch, indices)
        self._changed(share)
        return freed

    def stop(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Items are handed back unsent."""
        self._owner(batch).accumulator.stop(batch, indices)

    def done(self, batch: Sealed[T], failed: Sequence[int]) -> None:
        """A batch has ended: its tenant has room for others, and may go on."""
        share = self._owner(batch)
        share.accumulator.done(batch, failed)
        share.flying -= 1
        self._left(share, len(batch.items), batch.bytes)
        self._changed(share)
        if self._serial and not share.flying:
            self._wake_again(share)
        self._forget_idle(share)

    def _wake_again(self, share: Share[T]) -> None:
        """What became due while its tenant had a batch in flight may go now."""
        due = share.accumulator.due_at()
        if due is not None and share.due is None:
            share.due = due
            heapq.heappush(self._heap, (due, next(self._count), share))

    def _owner(self, batch: Sealed[T]) -> Share[T]:
        share = batch.share
        assert isinstance(share, Share)
        return share

    def _left(self, share: Share[T], items: int, size: int) -> None:
        share.inside -= items
        share.room.bytes_inside -= size
        if share.room.waiting:
            share.room.grant(share.inside)

    def _forget_idle(self, share: Share[T]) -> None:
        if not share.inside and not share.room.waiting and not share.room.granted and self._shares.get(share.tenant) is share:
            if share.has_turn:
                self._ring.remove(share)
            share.due = None
            del self._shares[share.tenant]

    # -- given up -----------------------------------------------------------------------------------------------------

    def evict_oldest(self) -> Evicted[T] | None:
        """Give up the oldest item that no worker has taken, of whatever tenant; `None` if there is none."""
        waiting = [share for share in self._shares.values() if share.accumulator.queued]
        share = min(waiting, key=lambda share: share.accumulator.oldest_at or 0.0, default=None)
        return None if share is None else self.evict_from(share)

    def evict_from(self, share: Share[T]) -> Evicted[T] | None:
        """Give up a tenant's oldest item that no worker has taken; `None` if there is none."""
        evicted = share.accumulator.evict_oldest()
        if evicted is not None:
            self.queued -= 1
            self.queued_bytes -= evicted.size
            self._left(share, 1, evicted.size)
            self._forget_idle(share)
        return evicted

    def clear(self, now: float) -> list[Leftover[T]]:
        """Give up everything that no worker has taken."""
        gone: list[Leftover[T]] = []
        for share in tuple(self._shares.values()):
            size = share.accumulator.queued_bytes
            items = share.accumulator.clear(now)
            gone += items
            self._left(share, len(items), size)
            self._forget_idle(share)
        self.queued = self.queued_bytes = 0
        return gone


def _tenant_of(key: Hashable) -> Hashable:
    assert isinstance(key, Belonging)
    return key.tenant
