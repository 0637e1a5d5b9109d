"""Tenants: batches of one tenant each, and flush slots shared fairly among ready tenants.

1. Each tenant has its own gatherer. Turns follow deficit round robin (see `turns`): a batch costs
   its bytes if items are measured, and at least 1 per item.
2. A quantum is a full batch, so a tenant of weight 1 sends a batch at each of its turns.
3. One agenda holds the times at which the tenants' open batches are due.
4. A tenant has an entry only while it has items, waiting producers or held keys.
5. With one worker and no keys a tenant has at most one batch in flight or in a backoff, so its
   items are in order; the slot serves other tenants meanwhile.
6. The fast path leads from one list to each tenant's open batch.
"""

from __future__ import annotations

import heapq
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..._core.batch import Reason
from ..._core.errors import KeyFailedError
from ..._core.order.keys import PLAIN, identity, shown
from ..ledger import Ledger
from .eras import FENCES
from .gatherer import Snapshot
from .pack import AddGroup, Pack
from .tenant_queue import TenantKey, TenantQueue
from .turns import Agenda, Turns
from .window import AddWindow, Known, NeedsSlowPath

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from ..ledger import Waiter
    from ..report import TenantStats
    from .gatherer import Gathering, Holding, Shape
    from .pack import Evicted, Leftover, Matches, Numbers, Sealed


T = TypeVar("T")

QUANTUM_BYTES = 64 << 10
"""Bytes of a turn if items are measured and a batch's bytes are not bounded."""


@dataclass(frozen=True, slots=True)
class TenantRules(Generic[T]):
    """The functions of tenants and keys, and the shares and caps of tenants."""

    make: Callable[[Ledger, AddWindow], Gathering[T]]
    """Builds a tenant's gatherer on its ledger, with its fast path."""
    tenant: Callable[[T], object]
    key: Callable[[T], Hashable]
    """The identity of an item's key, or `None`."""
    weight: Callable[[object], float]
    serial: bool
    """Whether a tenant has at most one batch in flight."""
    evicts: bool
    """Whether the oldest items may be evicted."""
    cap_items: int | None = None
    cap_bytes: int | None = None

    @property
    def has_caps(self) -> bool:
        """Whether tenants have their own caps."""
        return self.cap_items is not None or self.cap_bytes is not None

    def ledger(self, whole: Ledger) -> Ledger:
        """Make an empty ledger for one tenant."""
        most = sys.maxsize if self.cap_items is None else self.cap_items
        return Ledger(most, self.cap_bytes, whole)


class TenantGatherer(Generic[T]):
    """Items per tenant."""

    def __init__(
        self,
        rules: TenantRules[T],
        shape: Shape,
        ledger: Ledger,
        numbers: Numbers,
        *,
        window: AddWindow,
        now: Callable[[], float],
    ) -> None:
        self.rules = rules
        self._shape = shape
        self._ledger = ledger
        self._numbers = numbers
        self._queues: dict[Hashable, TenantQueue[T]] = {}
        self._router: TenantRouter[T] = TenantRouter(rules.tenant, self._queues, window)
        self.pack: Pack[T] = Pack(sized=False, make=lambda: self._router)
        self._turns: Turns[TenantQueue[T]] = Turns()
        self._dues: Agenda[TenantQueue[T]] = Agenda(self._due_of)
        self._ages: Agenda[TenantQueue[T]] | None = Agenda(_oldest_at) if rules.evicts else None
        self._now = 0.0
        self._clock = now
        self._failed: list[Leftover[T]] = []
        self._moving: Sealed[T] | None = None
        """The batch that is being taken, in case that fails."""
        self._is_stopping = False

    @property
    def spare(self) -> int:
        """Number of items that the fast path may append without further effect.

        Unlimited without measured items: the fast path looks up each item's tenant, whose own
        window has a limit. 0 with measured items, which take the slow path: their bytes count for
        the tenant and for the whole ledger.
        """
        return 0 if self._shape.sized else sys.maxsize

    def __len__(self) -> int:
        return len(self._queues)

    def queues(self) -> Iterator[TenantQueue[T]]:
        """The entries of all tenants."""
        return iter(tuple(self._queues.values()))

    # -- in ----------------------------------------------------------------------------------------

    def identity(self, item: T, *known: Hashable) -> TenantKey:
        """Identify an item's tenant, unless it is `known`, and its key.

        Raises `TypeError`, `KeyFailedError` and the functions' errors.
        """
        rules = self.rules
        tenant = known[0] if known else self._router.tenant_of(item)
        queue = self._queues.get(tenant)
        if queue is None:
            return TenantKey(tenant, rules.key(item), rules.weight(shown(tenant)))
        if queue.identity is None:
            return queue.key
        try:
            return TenantKey(tenant, queue.identity(item), queue.weight)
        except KeyFailedError as error:
            raise KeyFailedError(error.key, shown(tenant)) from None

    def identities(self, items: Sequence[T], *known: Hashable) -> tuple[TenantKey, ...]:
        """Identify each item, like `identity`."""
        return tuple([self.identity(item, *known) for item in items])

    def offer(self, group: AddGroup[T], now: float) -> Sequence[Leftover[T]]:
        """Accept items, with `TenantKey`s; return those that fail because of their key."""
        self._now = now
        self._router.clear()  # the window of the whole is closed, and has counted them
        for item, size, receipt, key in group.rows():  # one by one, to give turns in order
            own = cast("TenantKey", key)
            queue = self.queue(own)
            if queue.appends(item, receipt):
                self._ledger.entered(1, 0)  # its window counts only for the tenant
                continue
            failed = queue.change().offer(AddGroup((item,), (size,), (receipt,), (own.key,)), now)
            if self._ages is not None:
                self._ages.note(queue, now)
            self.changed(queue, failed)
        return self._take_failed()

    def known(self, key: TenantKey) -> TenantQueue[T] | None:
        """Return a tenant's entry, if there is one."""
        return self._queues.get(key.tenant)

    def queue(self, key: TenantKey) -> TenantQueue[T]:
        """Return a tenant's entry; create it if there is none."""
        queue = self._queues.get(key.tenant)
        if queue is None:
            ledger = self.rules.ledger(self._ledger)
            window = AddWindow(ledger)
            queue = TenantQueue(key, self.rules.make(ledger, window), ledger, window)
            self._queues[key.tenant] = queue
            if self._is_stopping and queue.holds is not None:
                queue.holds.begin_stop()
        return queue

    def changed(self, queue: TenantQueue[T], failed: Sequence[Leftover[T]] = ()) -> None:
        """Note a tenant's turn and due time, open its fast path, keep the failed items."""
        if failed:
            self._failed += failed
            self._grant(queue)
        if queue.gatherer.is_ready:
            self._give_turn(queue)
        due = self._due_of(queue)
        if due is not None:
            self._dues.note(queue, due)
        if not self._shape.sized:
            queue.changed()

    def _take_failed(self) -> Sequence[Leftover[T]]:
        if not self._failed:
            return ()
        gone, self._failed = self._failed, []
        return gone

    def _due_of(self, queue: TenantQueue[T]) -> float | None:
        """Return the time at which a tenant's open batch is due; `None` while the tenant is busy."""
        return None if self._is_busy(queue) else queue.gatherer.due_at()

    def _is_busy(self, queue: TenantQueue[T]) -> bool:
        return self.rules.serial and queue.flying > 0

    def _give_turn(self, queue: TenantQueue[T]) -> None:
        if not self._is_busy(queue):
            self._turns.give(queue, queue.weight)

    # -- when --------------------------------------------------------------------------------------

    def seal(self, reason: Reason, now: float) -> None:
        """Seal open batches: under pressure the oldest one, otherwise all."""
        self._now = now
        if reason is Reason.PRESSURE:
            first = self._dues.first()
            if first is not None:
                self._seal(first[1], reason)
        elif reason in FENCES:
            with self._numbers.shared():
                self._seal_all(reason)
        else:
            self._seal_all(reason)

    def _seal_all(self, reason: Reason) -> None:
        for queue in self.queues():
            self._seal(queue, reason)

    def _seal(self, queue: TenantQueue[T], reason: Reason) -> None:
        queue.change().seal(reason, self._now)
        self.changed(queue)

    def due_at(self) -> float | None:
        """Return when the first open batch of a tenant that is not busy is due; `None` without one."""
        first = self._dues.first()
        return None if first is None else first[0]

    # -- out ---------------------------------------------------------------------------------------

    def take(self, now: float) -> Sealed[T] | None:
        """Return the next batch of the tenant whose turn it is; `None` if none is ready."""
        self._now = now
        self._give_due_turns(now)
        quantum = self._quantum
        while (queue := self._turns.first(quantum)) is not None:
            batch = None if self._is_busy(queue) else queue.change().take(now)
            if batch is None:
                self._turns.lose(queue)
                self._reopen(queue)
                continue
            self._moving = batch
            self._charge(queue, batch)
            self._moving = None
            return batch
        return None

    def _charge(self, queue: TenantQueue[T], batch: Sealed[T]) -> None:
        """Note the batch that a tenant has in flight from now on."""
        self._reopen(queue)
        batch.belongs_to(shown(queue.tenant), queue)
        queue.took()
        self._turns.charge(queue, max(batch.bytes, len(batch.items)))

    def _reopen(self, queue: TenantQueue[T]) -> None:
        if not self._shape.sized:
            queue.changed()

    @property
    def _quantum(self) -> float:
        """The cost of a full batch."""
        if not self._shape.sized:
            return self._shape.max_items
        return self._shape.max_bytes or QUANTUM_BYTES

    def _give_due_turns(self, now: float) -> None:
        while (first := self._dues.first()) is not None and first[0] <= now:
            self._dues.drop(first[1])
            self._give_turn(first[1])

    # -- landing -----------------------------------------------------------------------------------

    def done(
        self, batch: Sealed[T], ended: Sequence[int] | None = None, back: Sequence[int] = ()
    ) -> Sequence[Leftover[T]]:
        """Free a batch's keys, and its tenant's room and slot once the write has ended."""
        queue = owner_of(batch)
        failed = queue.change().done(batch, ended, back)
        if back:  # they count twice until the write ends, when the whole batch leaves
            queue.ledger.landed(-len(back), -batch.size_of(back))
            if self._ages is not None:
                self._ages.note(queue, batch.oldest_at)
        if ended is None:
            queue.landed(len(batch.items), batch.bytes)
            self._grant(queue)
        self.changed(queue, failed)
        self.forget(queue)
        return self._take_failed()

    def forget(self, queue: TenantQueue[T]) -> None:
        """Remove the entry of an idle tenant."""
        if queue.is_idle and self._queues.get(queue.tenant) is queue:
            self._turns.forget(queue)
            self._dues.drop(queue)
            if self._ages is not None:
                self._ages.drop(queue)
            del self._queues[queue.tenant]

    def _grant(self, queue: TenantQueue[T]) -> None:
        if queue.ledger.waiting:
            queue.grant(self._clock())  # the fast path does not move `_now`

    def settle_room(self, queue: TenantQueue[T]) -> None:
        """Serve a tenant's waiting producers after a change of its room."""
        self._grant(queue)
        self.changed(queue)

    # -- evicted -----------------------------------------------------------------------------------

    def evict_oldest(self) -> Evicted[T] | None:
        """Evict the oldest queued item of all tenants; return `None` if there is none."""
        first = None if self._ages is None else self._ages.first()
        return None if first is None else self.evict_from(first[1])

    def evict_from(self, queue: TenantQueue[T]) -> Evicted[T] | None:
        """Evict a tenant's oldest queued item; return `None` if there is none."""
        evicted = queue.change().evict_oldest()
        if evicted is not None:
            self._grant(queue)
            self.changed(queue)
            self.forget(queue)
        return evicted

    def clear(self, now: float) -> list[Leftover[T]]:
        """Evict all queued items."""
        self._now = now
        gone: list[Leftover[T]] = []
        if self._moving is not None:
            (moving, self._moving), whole = (self._moving, None), self._ledger
            whole.put_back(len(moving.items), moving.bytes)
            whole.left_queue(len(moving.items), moving.bytes)
            gone += moving.leftovers()
        for queue in self.queues():
            items = queue.change().clear(now)
            gone += [item._replace(tenant=shown(queue.tenant)) for item in items]
            queue.grant(now)
            self.forget(queue)
        return gone

    def withdraw(self, matches: Matches, now: float) -> list[Leftover[T]]:
        """Evict the queued items of all tenants with matching receipts."""
        self._now = now
        gone: list[Leftover[T]] = []
        for queue in self.queues():
            items = queue.change().withdraw(matches, now)
            gone += [item._replace(tenant=shown(queue.tenant)) for item in items]
            self.settle_room(queue)
            self.forget(queue)
        return gone

    def resubmit(self, group: AddGroup[T], now: float) -> Sequence[Leftover[T]]:
        """Accept items of one key of a tenant in front of its lane."""
        self._now = now
        own = [cast("TenantKey", key) for key in group.keys or ()]
        queue = self.queue(own[0])
        if queue.identity is None:
            return self.offer(group, now)
        keys = tuple(key.key for key in own)
        failed = queue.change().resubmit(group._replace(keys=keys), now)
        self.changed(queue, failed)
        return self._take_failed()

    def begin_stop(self) -> None:
        """Return held items from now on, including those of later tenants."""
        self._is_stopping = True
        for queue in self.queues():
            if queue.holds is not None:
                queue.holds.begin_stop()

    def turn_away(self) -> list[Waiter]:
        """Remove and return all producers that wait for a tenant's room."""
        return [waiter for queue in self.queues() for waiter in queue.ledger.turn_away()]

    # -- state -------------------------------------------------------------------------------------

    def queued_until(self, number: int) -> int:
        """Count the queued items up to this batch number, without those of held keys."""
        return sum(queue.gatherer.queued_until(number) for queue in self.queues())

    @property
    def is_ready(self) -> bool:
        """Whether a batch of any tenant is ready, regardless of the time."""
        return any(queue.gatherer.is_ready for queue in self.queues())

    def snapshot(self) -> Snapshot:
        """Return the current counts across all tenants."""
        held = [queue.gatherer.snapshot() for queue in self.queues()]
        ages = [each.oldest_at for each in held if each.oldest_at is not None]
        items, batches = sum(each.open_items for each in held), sum(each.sealed for each in held)
        return Snapshot(items, batches, min(ages, default=None))

    def busiest(self, most: int, now: float) -> list[TenantStats]:
        """Return the tenants with the most pending items, in descending order. Visits every
        tenant.
        """
        queues = heapq.nlargest(most, self.queues(), key=lambda queue: queue.ledger.inside)
        return [queue.stats(now) for queue in queues]


def owner_of(batch: Sealed[T]) -> TenantQueue[T]:
    """Return the tenant that a batch belongs to."""
    return cast("TenantQueue[T]", batch.owner)


def _oldest_at(queue: TenantQueue[Any]) -> float | None:
    return queue.gatherer.snapshot().oldest_at


class TenantRouter(list[Any], Generic[T]):
    """The list that the fast path appends to; passes each item on to its tenant's open batch.

    The list itself contains a `None` for each item, since the ledger counts the items of the fast
    path by its length.
    """

    __slots__ = ("_queues", "_tenant_of", "_window")

    join = list[Any].append
    """Count an item."""

    def __init__(
        self,
        tenant: Callable[[T], object],
        queues: dict[Hashable, TenantQueue[T]],
        window: AddWindow,
    ) -> None:
        self._tenant_of = tenant
        self._queues = queues
        self._window = window

    def append(self, item: T, /) -> None:
        """Append an item to its tenant's open batch.

        Raises `NeedsSlowPath` with the tenant if the tenant's window has no room, and the
        functions' errors. In both cases the item was not accepted, and its receipt is no longer
        kept.
        """
        whole = self._window
        receipts = whole.receipts
        receipt = receipts.pop(len(self), None) if receipts else None
        tenant = self._tenant_of(item)
        if type(tenant) not in PLAIN:
            tenant = identity(tenant, "tenant")
        queue = self._queues.get(tenant)
        if queue is None or len(self) >= whole.try_limit:  # the function may have used the batcher
            raise NeedsSlowPath(Known(tenants=(tenant,)))
        window = queue.window
        items = window.items
        filled = len(items)
        if filled >= window.try_limit:
            raise NeedsSlowPath(Known(tenants=(tenant,)))
        if receipt is not None:
            window.receipts[filled] = receipt
        items.append(item)
        self.join(None)

    def tenant_of(self, item: T) -> Hashable:
        """Return the identity of an item's tenant. Raises `TypeError` and the function's errors."""
        return identity(self._tenant_of(item), "tenant")


class TenantHolds(Generic[T]):
    """Held keys, each within its tenant."""

    def __init__(self, tenants: TenantGatherer[T]) -> None:
        self._tenants = tenants
        self.keys = 0
        """Number of held keys of all tenants."""

    @property
    def items(self) -> int:
        """Number of queued items of held keys. Visits every tenant."""
        return sum(holds.items for holds in self._each())

    def until(self, number: int) -> int:
        """Count the queued items of held keys up to this batch number."""
        return sum(holds.until(number) for holds in self._each())

    def _each(self) -> list[Holding]:
        return [queue.holds for queue in self._tenants.queues() if queue.holds is not None]

    def stop(self, batch: Sealed[Any], indices: Sequence[int]) -> None:
        """Hold the keys of these items."""
        queue: TenantQueue[T] = owner_of(batch)
        before = queue.held_keys
        if queue.holds is not None:
            queue.change()
            queue.holds.stop(batch, indices)
        self.keys += queue.held_keys - before

    def is_going(self, key: Hashable) -> bool:
        """Return whether items of a held key (a `TenantKey`) are in a batch."""
        own = cast("TenantKey", key)
        queue = self._tenants.known(own)
        return queue is not None and queue.holds is not None and queue.holds.is_going(own.key)

    def let_go(self, key: Hashable, now: float) -> int:
        """Release a tenant's key (a `TenantKey`); return its number of held items."""
        queue = self._tenants.known(cast("TenantKey", key))
        if queue is None or queue.holds is None:
            return 0
        before = queue.held_keys
        queue.change()
        count = queue.holds.let_go(cast("TenantKey", key).key, now)
        self.keys += queue.held_keys - before
        self._tenants.settle_room(queue)
        self._tenants.forget(queue)
        return count

    def begin_stop(self) -> None:
        """Return held items from now on."""
        self._tenants.begin_stop()
