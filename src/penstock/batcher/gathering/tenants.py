"""Tenants: a batch belongs to one tenant, and flush slots are shared fairly among those who have
something to send.

An accumulator per tenant answers the five questions for its own items; this one asks the tenant
whose turn it is.

1. Turns go by deficit round robin. Whoever comes to the front without credit gets `quantum` times
   its weight. It sends while it has credit, from which each batch is taken (its bytes where items
   are measured, at least one for each item), and goes to the back without. So over any stretch in
   which two tenants have something to send, what they sent differs from their weights' ratio by a
   turn of each at most.
2. A quantum is a full batch, so a tenant of weight 1 has something to send at each of its turns.
   Credit is not saved: a tenant with nothing to send loses it. What it owes stays for as long as it
   has items inside.
3. One agenda holds the times at which tenants' open batches are due.
4. A tenant has an entry only while an item of its is inside (queued, in flight or backing off) or a
   key of its is held. Nothing is left of an idle one.
5. With one worker and no keys a tenant has one batch in flight at most, also while that backs off,
   so its items are in order; its slot serves the others meanwhile.
6. Batch numbers count over all tenants, so that a fence stands for a moment and not for a tenant.
"""

from __future__ import annotations

import heapq
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from ..._core.agenda import Agenda
from ..._core.errors import ItemTooLarge, KeyFailedError
from ..._core.ledger import Room
from ..._core.lineage import Reason
from ..._core.order.keys import identity, shown
from ..._core.told import repr_of
from ..bounds import behind
from ..report import TenantStats
from .plain import Evicted, Leftover, PlainAccumulator, Sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from ..._core.ledger import Waiter
    from ..receipt import ReceiptBase
    from .plain import Accumulator

T = TypeVar("T")

QUANTUM_BYTES = 64 << 10
"""A turn's bytes where items are measured and nothing bounds a batch's bytes."""


class TenantKey(NamedTuple):
    """Whose an item is, and its key there."""

    tenant: Hashable
    key: Hashable
    weight: float = 1.0
    """Asked for before the item is in, since asking may fail."""


class Share(Generic[T]):
    """One tenant that has items inside."""

    __slots__ = ("accumulator", "credit", "flying", "inside", "room", "tenant", "weight")

    def __init__(
        self, tenant: Hashable, accumulator: Accumulator[T], weight: float, room: Room
    ) -> None:
        self.tenant = tenant
        self.accumulator = accumulator
        self.weight = weight
        self.room = room
        """Its part of the ledger."""
        self.inside = 0
        """Items that have not left the ledger; those of a flight leave together, when it has
        ended.
        """
        self.flying = 0
        """Batches in flight or backing off."""
        self.credit = 0.0

    def stats(self, now: float) -> TenantStats:
        """What there is to tell."""
        oldest = self.accumulator.oldest_at
        return TenantStats(
            tenant=shown(self.tenant),
            inside=self.inside,
            queued=self.accumulator.queued,
            in_flight_batches=self.flying,
            held_keys=self.accumulator.held_keys,
            held_items=self.accumulator.held,
            waiting_producers=self.room.waiting,
            oldest_age=None if oldest is None else now - oldest,
        )


class Reservation(Generic[T]):
    """What a tenant's part of the ledger is to take in."""

    __slots__ = ("_house", "belonging", "items", "size")

    def __init__(
        self, house: TenantAccumulator[T], belonging: TenantKey, items: int, size: int
    ) -> None:
        self._house = house
        self.belonging = belonging
        self.items = items
        self.size = size

    @property
    def name(self) -> object:
        """The tenant as the user knows it."""
        return shown(self.belonging.tenant)

    @property
    def full(self) -> str:
        """How full it is, in words."""
        share = self._house.known(self.belonging)
        inside, held = (
            (0, "") if share is None else (share.inside, behind(share.accumulator.held_keys))
        )
        return (
            f"tenant {repr_of(self.name)} has {inside} items inside, and its part of the "
            f"ledger is full{held}"
        )

    @property
    def fits(self) -> bool:
        """Whether there is room now, without overtaking anybody. There is in the part of a tenant
        of which nothing is inside.
        """
        share = self._house.known(self.belonging)
        return share is None or (
            not share.room.contended and share.room.fits(share.inside, self.items, self.size)
        )

    @property
    def may_fit(self) -> bool:
        """Whether there would be if all went that no worker has taken."""
        share = self._house.known(self.belonging)
        if share is None:
            return True
        waiting = share.accumulator
        return share.room.fits(
            share.inside - waiting.queued, self.items, self.size - waiting.queued_bytes
        )

    def evict(self) -> Evicted[T] | None:
        """Give up the tenant's oldest item that no worker has taken; `None` if there is none."""
        share = self._house.known(self.belonging)
        return None if share is None else self._house.evict_from(share)

    def join(self, waiter: Waiter) -> None:
        """Have `waiter` granted the room, now or when it comes free; what is inside of its tenant
        does not linger while it waits.

        The tenant keeps its entry until `leave`.
        """
        share = self._house.share(self.belonging)
        share.room.join(waiter)
        self._house.grant(share)

    def leave(self, waiter: Waiter) -> None:
        """A waiter has used its grant, or gives up."""
        share = self._house.share(self.belonging)
        share.room.leave(waiter)
        self._house.grant(share)
        self._house.forget(share)


class Tenanted(PlainAccumulator[T]):
    """A tenant's items in arrival order. Its batches' numbers count over all tenants."""

    def __init__(
        self, house: TenantAccumulator[T], *, max_bytes: int | None, max_delay: float, sized: bool
    ) -> None:
        super().__init__(
            max_items=house.max_items, max_bytes=max_bytes, max_delay=max_delay, sized=sized
        )
        self._house = house

    def seal(self, reason: Reason, now: float) -> None:
        """End the open batch, if it holds anything."""
        self.last_number = self._house.last_number
        super().seal(reason, now)
        self._house.last_number = self.last_number


class TenantAccumulator(Generic[T]):
    """Items per tenant. Times are monotonic seconds, given by the caller.

    `make` gives a tenant's own accumulator; `tenant` an item's tenant; `weight` a tenant's share;
    `key` an item's key as `identity` has it, or `None`; `serial` holds a tenant to one batch at a
    time; `holds_keys` says whether an item that fails may stop its key; `evicts` keeps what
    `evict_oldest` needs; `cap_items` and `cap_bytes` bound what is inside of one tenant.
    """

    def __init__(
        self,
        make: Callable[[TenantAccumulator[T]], Accumulator[T]],
        *,
        tenant: Callable[[T], object],
        key: Callable[[T], Hashable],
        weight: Callable[[object], float],
        max_items: int,
        max_bytes: int | None,
        sized: bool,
        serial: bool,
        holds_keys: bool,
        evicts: bool,
        cap_items: int | None = None,
        cap_bytes: int | None = None,
    ) -> None:
        self._make = make
        self._tenant = tenant
        self._key = key
        self._weight = weight
        self._sized = sized
        self._serial = serial
        self.max_items = max_items
        """Items in a batch, at most."""
        self._max_bytes = max_bytes
        self._cap_items = cap_items
        self._cap_bytes = cap_bytes
        self._now = 0.0
        self._shares: dict[Hashable, Share[T]] = {}
        self._ring: OrderedDict[Share[T], None] = OrderedDict()
        self._dues: Agenda[Share[T]] = Agenda(self._due_of)
        self._ages: Agenda[Share[T]] | None = Agenda(_oldest_at) if evicts else None
        self.items: list[T] = []
        """Never filled: there is no short way in."""
        self._failed: list[Leftover[T]] = []
        self._is_stopping = False
        self.holds_keys = holds_keys
        """Whether an item that fails for good stops what comes after it of its key."""
        self.queued = 0
        """Items that no worker has taken."""
        self.queued_bytes = 0
        """Their size; 0 where nothing measures it."""
        self.held_keys = 0
        """Keys of which nothing goes."""
        self.last_number = 0
        """The number of the batch sealed last."""
        self.receipts: dict[int, ReceiptBase] = {}
        """Nor are these."""
        self.keeps_order = True
        """A tenant's items stay in order without a slot being kept for them."""
        self.spare = 0
        """None may come in by the short way: everybody's tenant has to be looked at."""

    # -- what is inside ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many tenants have something inside."""
        return len(self._shares)

    @property
    def tenants(self) -> int:
        """As `len`, for whoever asks any accumulator."""
        return len(self)

    def busiest(self, most: int, now: float) -> list[TenantStats]:
        """The tenants with the most items inside, at most so many, the first first. Looks at every
        tenant.
        """
        shares = heapq.nlargest(most, tuple(self._shares.values()), key=lambda share: share.inside)
        return [share.stats(now) for share in shares]

    def _each(self) -> Iterator[Accumulator[T]]:
        return (share.accumulator for share in tuple(self._shares.values()))

    @property
    def held(self) -> int:
        """Items in lanes that are held."""
        return sum(accumulator.held for accumulator in self._each())

    @property
    def is_ready(self) -> bool:
        """Whether there is a batch that may go, whatever the time."""
        return any(accumulator.is_ready for accumulator in self._each())

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
        return min(
            (at for accumulator in self._each() if (at := accumulator.oldest_at) is not None),
            default=None,
        )

    def queued_until(self, number: int) -> int:
        """Items up to this batch number that no worker has taken, and nobody holds."""
        return sum(accumulator.queued_until(number) for accumulator in self._each())

    def held_until(self, number: int) -> int:
        """Items up to this batch number that are held."""
        return sum(accumulator.held_until(number) for accumulator in self._each())

    def resize(self, max_items: int, now: float) -> None:
        """Change `max_items`, for all that nobody has taken."""
        self._now = now
        self.max_items = max_items
        for share in tuple(self._shares.values()):
            share.accumulator.resize(max_items, now)
            self._changed(share)

    def _quantum(self) -> float:
        """A full batch."""
        if not self._sized:
            return self.max_items
        return self._max_bytes or QUANTUM_BYTES

    # -- in ----------------------------------------------------------------------------------------

    def identity(self, item: T) -> TenantKey:
        """Whose an item is.

        Raises `TypeError` for what cannot be a tenant or a key, `KeyFailedError` for a key that
        takes no more items, and whatever those functions raise.
        """
        tenant = identity(self._tenant(item), "tenant")
        share = self._shares.get(tenant)
        if share is None:
            return TenantKey(tenant, self._key(item), self._weight(shown(tenant)))
        try:
            return TenantKey(tenant, share.accumulator.identity(item), share.weight)
        except KeyFailedError as error:
            raise KeyFailedError(error.key, shown(tenant)) from None

    def wants(self, keys: Iterable[Hashable], sizes: Iterable[int]) -> list[Reservation[T]]:
        """What each tenant's part of the ledger is to take in, in the order in which parts are
        waited for; empty where nothing caps them.

        Raises `ItemTooLarge` for what could never fit.
        """
        if not self._has_caps:
            return []
        wanted: dict[Hashable, Reservation[T]] = {}
        for key, size in zip(keys, sizes, strict=True):
            belonging = _belonging(key)
            want = wanted.setdefault(belonging.tenant, Reservation(self, belonging, 0, 0))
            want.items += 1
            want.size += size
        for want in wanted.values():
            if not self._room().could_ever_fit(want.items, want.size):
                caps = (
                    f"tenants' max_pending_items={self._cap_items}, "
                    f"max_pending_bytes={self._cap_bytes}"
                )
                raise ItemTooLarge(
                    f"{want.items} items of {want.size} bytes can never fit for tenant "
                    f"{repr_of(want.name)}: {caps}"
                )
        return sorted(
            wanted.values(),
            key=lambda want: (hash(want.belonging.tenant), repr(want.belonging.tenant)),
        )

    def grant(self, share: Share[T]) -> None:
        """Let those who wait for a tenant's room have what there is."""
        share.room.grant(share.inside)
        if (
            share.room.waiting
            and not share.room.granted
            and not share.flying
            and not share.accumulator.is_ready
        ):
            self._seal(share, Reason.PRESSURE, self._now)

    @property
    def _has_caps(self) -> bool:
        return self._cap_items is not None or self._cap_bytes is not None

    def turn_away(self) -> list[Waiter]:
        """Everybody who waits for a tenant's room, no longer in any queue."""
        return [waiter for share in self._shares.values() for waiter in share.room.turn_away()]

    def offer(
        self, item: T, size: int, receipt: ReceiptBase | None, now: float, key: Hashable
    ) -> None:
        """Take an item in; `key` is what `identity` says of it."""
        self._now = now
        belonging = _belonging(key)
        share = self.share(belonging)
        share.accumulator.offer(item, size, receipt, now, belonging.key)
        share.inside += 1
        share.room.bytes_inside += size
        self.queued += 1
        self.queued_bytes += size
        if self._ages is not None:
            self._ages.note(share, now)
        self._changed(share)

    def offer_all(self, items: Sequence[T], now: float) -> None:
        """As `offer` of one after the other, for items without size or receipt."""
        for item in items:
            self.offer(item, 0, None, now, self.identity(item))

    def begin(self, now: float) -> None:
        """Nobody comes in by a short way."""

    def known(self, belonging: TenantKey) -> Share[T] | None:
        """A tenant's entry, if it has one."""
        return self._shares.get(belonging.tenant)

    def share(self, belonging: TenantKey) -> Share[T]:
        """A tenant's entry."""
        share = self._shares.get(belonging.tenant)
        if share is None:
            share = self._shares[belonging.tenant] = Share(
                belonging.tenant, self._make(self), belonging.weight, self._room()
            )
            if self._is_stopping:
                share.accumulator.begin_stop()
        return share

    def _room(self) -> Room:
        return Room(sys.maxsize if self._cap_items is None else self._cap_items, self._cap_bytes)

    def _changed(self, share: Share[T]) -> None:
        """See whether a tenant has something to send, or when it will."""
        accumulator = share.accumulator
        if self.holds_keys and (gone := accumulator.failed()):
            self._failed += gone
            self._left_queue(share, len(gone), sum(item.size for item in gone))
        self.last_number = max(self.last_number, accumulator.last_number)
        if accumulator.is_ready:
            self._give_turn(share)
        due = self._due_of(share)
        if due is not None:
            self._dues.note(share, due)

    def _due_of(self, share: Share[T]) -> float | None:
        """When a tenant's open batch is due, if it may go then."""
        return None if self._serial and share.flying else share.accumulator.due_at()

    def _give_turn(self, share: Share[T]) -> None:
        if share not in self._ring and not (self._serial and share.flying):
            self._ring[share] = None

    # -- when --------------------------------------------------------------------------------------

    def seal(self, reason: Reason, now: float) -> None:
        """End open batches: under pressure the oldest one, otherwise all of them."""
        self._now = now
        if reason is Reason.PRESSURE:
            first = self._dues.first()
            if first is not None:
                self._seal(first[1], reason, now)
            return
        for share in tuple(self._shares.values()):
            self._seal(share, reason, now)

    def _seal(self, share: Share[T], reason: Reason, now: float) -> None:
        share.accumulator.seal(reason, now)
        self._changed(share)

    def due_at(self) -> float | None:
        """When the first open batch is due, of those whose tenants may send; `None` while all are
        empty.
        """
        first = self._dues.first()
        return None if first is None else first[0]

    # -- out ---------------------------------------------------------------------------------------

    def take(self, now: float) -> Sealed[T] | None:
        """The next batch of the tenant whose turn it is; `None` if nobody has anything to send."""
        self._now = now
        self._wake(now)
        passed = 0
        while self._ring:
            share = next(iter(self._ring))
            if share.credit <= 0:
                if passed == len(self._ring):
                    self._skip_rounds()
                    passed = 0
                share.credit += self._quantum() * share.weight
                if share.credit <= 0:
                    self._ring.move_to_end(share)
                    passed += 1
                    continue
            batch = None if self._serial and share.flying else share.accumulator.take(now)
            if batch is None:
                self._lose_turn(share)
                passed = 0
                continue
            self.last_number = max(self.last_number, share.accumulator.last_number)
            batch.tenant = shown(share.tenant)
            batch.share = share
            share.flying += 1
            share.credit -= max(batch.bytes, len(batch.items))
            if share.credit <= 0:
                self._ring.move_to_end(share)
            self.queued -= len(batch.items)
            self.queued_bytes -= batch.bytes
            return batch
        return None

    def _skip_rounds(self) -> None:
        """Everybody owes for several turns, after batches far larger than one: give all the rounds
        at once in which nobody would send.
        """
        quantum = self._quantum()
        rounds = min(-share.credit // (quantum * share.weight) for share in self._ring)
        for share in self._ring:
            share.credit += rounds * quantum * share.weight

    def _wake(self, now: float) -> None:
        """Give a turn to everybody whose open batch is due."""
        while (first := self._dues.first()) is not None and first[0] <= now:
            self._dues.drop(first[1])
            self._give_turn(first[1])

    def _lose_turn(self, share: Share[T]) -> None:
        del self._ring[share]
        share.credit = min(share.credit, 0.0)

    def settled(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Items have ended while others of their batch go on."""
        share = self._owner(batch)
        share.accumulator.settled(batch, indices)
        self._changed(share)

    def stop(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Nothing that comes after these items of their keys goes on, until `let_go`."""
        accumulator = self._owner(batch).accumulator
        self.held_keys -= accumulator.held_keys
        accumulator.stop(batch, indices)
        self.held_keys += accumulator.held_keys

    def put_back(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Items wait again for those before them of their key; what `done` lets go is all of the
        batch, so they come in once more.
        """
        share = self._owner(batch)
        share.accumulator.put_back(batch, indices)
        size = sum(batch.sizes[index] for index in indices) if batch.sizes is not None else 0
        share.inside += len(indices)
        share.room.bytes_inside += size
        self.queued += len(indices)
        self.queued_bytes += size
        if self._ages is not None:
            self._ages.note(share, batch.oldest_at)

    def let_go(self, key: Hashable, now: float) -> int:
        """What is held of a tenant's key may go; return how many that are. `key` is what `identity`
        says of its items.
        """
        self._now = now
        belonging = _belonging(key)
        share = self.known(belonging)
        if share is None:
            return 0
        self.held_keys -= share.accumulator.held_keys
        count = share.accumulator.let_go(belonging.key, now)
        self.held_keys += share.accumulator.held_keys
        self._changed(share)
        self.grant(share)  # what may go now does not linger while somebody waits for its room
        self.forget(share)
        return count

    def failed(self) -> list[Leftover[T]]:
        """What fails because an earlier item of its key has; each is told of once."""
        gone, self._failed = self._failed, []
        return gone

    def begin_stop(self) -> None:
        """What is held now is handed back soon."""
        self._is_stopping = True
        for share in self._shares.values():
            share.accumulator.begin_stop()

    def done(self, batch: Sealed[T], failed: Sequence[int]) -> None:
        """A batch has ended: its tenant has room for others, and may go on."""
        share = self._owner(batch)
        share.accumulator.done(batch, failed)
        share.flying -= 1
        self._left(share, len(batch.items), batch.bytes)
        self._changed(share)
        self.forget(share)

    def _owner(self, batch: Sealed[T]) -> Share[T]:
        share = batch.share
        assert isinstance(share, Share)
        return cast("Share[T]", share)

    def _left(self, share: Share[T], items: int, size: int) -> None:
        share.inside -= items
        share.room.bytes_inside -= size
        if share.room.waiting:
            self.grant(share)

    def _left_queue(self, share: Share[T], items: int, size: int) -> None:
        """Items that no worker had taken are inside no longer."""
        self.queued -= items
        self.queued_bytes -= size
        self._left(share, items, size)

    def forget(self, share: Share[T]) -> None:
        """Keep no entry of a tenant of which nothing is inside, or on its way in, and no key is
        held.
        """
        on_its_way = share.room.waiting or share.room.granted
        if (
            not share.inside
            and not on_its_way
            and not share.accumulator.held_keys
            and self._shares.get(share.tenant) is share
        ):
            self._ring.pop(share, None)
            self._dues.drop(share)
            if self._ages is not None:
                self._ages.drop(share)
            del self._shares[share.tenant]

    # -- given up ----------------------------------------------------------------------------------

    def evict_oldest(self) -> Evicted[T] | None:
        """Give up the oldest item that no worker has taken, of whatever tenant; `None` if there is
        none.
        """
        first = None if self._ages is None else self._ages.first()
        return None if first is None else self.evict_from(first[1])

    def evict_from(self, share: Share[T]) -> Evicted[T] | None:
        """Give up a tenant's oldest item that no worker has taken; `None` if there is none."""
        evicted = share.accumulator.evict_oldest()
        if evicted is not None:
            self._left_queue(share, 1, evicted.size)
            self._changed(share)
            self.forget(share)
        return evicted

    def clear(self, now: float) -> list[Leftover[T]]:
        """Give up everything that no worker has taken."""
        gone: list[Leftover[T]] = []
        for share in tuple(self._shares.values()):
            size = share.accumulator.queued_bytes
            items = share.accumulator.clear(now)
            gone += [item._replace(tenant=shown(share.tenant)) for item in items]
            self._left(share, len(items), size)
            self.forget(share)
        self.queued = self.queued_bytes = 0
        return gone


def _oldest_at(share: Share[Any]) -> float | None:
    return share.accumulator.oldest_at


def _belonging(key: Hashable) -> TenantKey:
    assert isinstance(key, TenantKey)
    return key
