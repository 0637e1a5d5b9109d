"""Room for a group: in the ledgers of its tenants, where those are bounded, and in the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from .._core.errors import ItemTooLarge
from .._core.order.keys import shown
from .._core.told import repr_of
from .gathering.tenants import TenantGatherer

if TYPE_CHECKING:
    from .._core.ledger import Ledger, Waiter
    from .gathering.add_group import AddGroup
    from .gathering.gathering import Gathering
    from .gathering.pack import Evicted
    from .gathering.tenant_queue import TenantKey

T = TypeVar("T")


class Reservation(Protocol):
    """A group's room in one ledger."""

    items: int
    size: int

    @property
    def full(self) -> str:
        """That the ledger is full, in words."""
        ...

    @property
    def fits(self) -> bool:
        """Whether there is room now without overtaking a waiter."""
        ...

    @property
    def may_fit(self) -> bool:
        """Whether there would be room if everything queued were given up."""
        ...

    def evict(self) -> Evicted[Any] | None:
        """Give up the oldest queued item here; `None` if there is none."""
        ...

    def join(self, waiter: Waiter) -> None:
        """Have the waiter granted the room, now or when it comes free."""

    def leave(self, waiter: Waiter) -> None:
        """End the wait, used or not; unused room goes to others."""


class WholeReservation(Generic[T]):
    """Room in the whole ledger."""

    def __init__(self, ledger: Ledger, gathering: Gathering[T], items: int, size: int) -> None:
        self._ledger = ledger
        self._gathering = gathering
        self.items = items
        self.size = size

    @property
    def full(self) -> str:
        """That it is full, in words."""
        ledger = self._ledger
        held = _held(self._gathering.held_keys)
        return f"the ledger is full ({ledger.inside} of {ledger.max_items} items){held}"

    @property
    def fits(self) -> bool:
        """Whether there is room now without overtaking a waiter."""
        return self._ledger.admits(self.items, self.size)

    @property
    def may_fit(self) -> bool:
        """Whether there would be room if everything queued were given up."""
        return self._ledger.would_fit(self.items, self.size)

    def evict(self) -> Evicted[T] | None:
        """Give up the oldest queued item of all."""
        return self._gathering.gatherer.evict_oldest()

    def join(self, waiter: Waiter) -> None:
        """Wait behind all others."""
        self._ledger.join(waiter)
        self._ledger.grant()

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer."""
        self._ledger.leave(waiter)
        self._ledger.grant()


class TenantReservation(Generic[T]):
    """Room in a tenant's ledger. A tenant with nothing inside has no entry, and room for all."""

    def __init__(self, tenants: TenantGatherer[T], key: TenantKey) -> None:
        self._tenants = tenants
        self.key = key
        self.items = 0
        self.size = 0

    def add(self, size: int) -> None:
        """One more item."""
        self.items += 1
        self.size += size

    @property
    def _shown(self) -> str:
        return repr_of(shown(self.key.tenant))

    @property
    def full(self) -> str:
        """That it is full, in words."""
        queue = self._tenants.known(self.key)
        inside, held = (0, 0) if queue is None else (queue.ledger.inside, queue.held_keys)
        full = f"and its part of the ledger is full{_held(held)}"
        return f"tenant {self._shown} has {inside} items inside, {full}"

    @property
    def fits(self) -> bool:
        """Whether there is room now without overtaking a waiter."""
        queue = self._tenants.known(self.key)
        return queue is None or queue.ledger.admits(self.items, self.size)

    @property
    def may_fit(self) -> bool:
        """Whether there would be room if everything queued were given up."""
        queue = self._tenants.known(self.key)
        return queue is None or queue.ledger.would_fit(self.items, self.size)

    def check(self, empty: Ledger) -> None:
        """Raise `ItemTooLarge` for a group that could never fit."""
        if empty.could_ever_fit(self.items, self.size):
            return
        rules, group = self._tenants.rules, f"{self.items} items of {self.size} bytes"
        caps = f"max_pending_items={rules.cap_items}, max_pending_bytes={rules.cap_bytes}"
        raise ItemTooLarge(f"{group} can never fit for tenant {self._shown}: tenants' {caps}")

    def evict(self) -> Evicted[T] | None:
        """Give up the tenant's oldest queued item."""
        queue = self._tenants.known(self.key)
        return None if queue is None else self._tenants.evict_from(queue)

    def join(self, waiter: Waiter) -> None:
        """Wait for room; the tenant keeps its entry meanwhile, and its items do not linger."""
        queue = self._tenants.queue(self.key)
        queue.ledger.join(waiter)
        self._tenants.settle_room(queue)

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer."""
        queue = self._tenants.queue(self.key)
        queue.ledger.leave(waiter)
        self._tenants.settle_room(queue)
        self._tenants.forget(queue)


def tenant_reservations(
    gathering: Gathering[T], group: AddGroup[T], whole: Ledger
) -> list[TenantReservation[T]]:
    """Room needed in the tenants' ledgers, in the order to wait for; empty without caps.

    Raises `ItemTooLarge` for a group that could never fit.
    """
    tenants = gathering.gatherer
    if not isinstance(tenants, TenantGatherer) or not tenants.rules.has_caps:
        return []
    needed: dict[object, TenantReservation[T]] = {}
    for _, size, _, key in group.rows():
        own = cast("TenantKey", key)
        if own.tenant not in needed:
            needed[own.tenant] = TenantReservation(tenants, own)
        needed[own.tenant].add(size)
    empty = tenants.rules.ledger(whole)
    for reservation in needed.values():
        reservation.check(empty)
    return sorted(needed.values(), key=lambda one: (hash(one.key.tenant), repr(one.key.tenant)))


def _held(keys: int) -> str:
    """The held keys, which may keep a ledger full for long."""
    return f"; held keys: {keys}" if keys else ""
