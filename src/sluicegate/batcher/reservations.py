"""Reservations: the room that a group of items needs in each ledger before it is accepted.

A group reserves room in the ledgers of its tenants, if they have limits, and in the whole ledger
last. Tenants come in a fixed order, so that two groups do not wait for each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from .._core.errors import ItemTooLarge
from .._core.order.keys import shown
from .._core.text import repr_of
from .gathering.tenants import TenantGatherer

if TYPE_CHECKING:
    from .gathering.gatherer import Gathering
    from .gathering.pack import AddGroup, Evicted
    from .gathering.tenant_queue import TenantKey
    from .ledger import Ledger, Waiter


T = TypeVar("T")


class WholeReservation(Generic[T]):
    """Capacity in the whole ledger."""

    def __init__(self, ledger: Ledger, gathering: Gathering[T], items: int, size: int) -> None:
        self._ledger = ledger
        self._gathering = gathering
        self.items = items
        self.size = size

    @property
    def full(self) -> str:
        """A text saying that the ledger is full."""
        ledger = self._ledger
        held = _held(self._gathering.held_keys)
        return f"the ledger is full ({ledger.inside} of {ledger.max_items} items){held}"

    @property
    def fits(self) -> bool:
        """Whether there is room now without overtaking a waiter."""
        return self._ledger.admits(self.items, self.size)

    @property
    def may_fit(self) -> bool:
        """Whether there would be enough capacity if all queued items were evicted."""
        return self._ledger.would_fit(self.items, self.size)

    def evict(self) -> Evicted[T] | None:
        """Evict the oldest queued item of all."""
        return self._gathering.gatherer.evict_oldest()

    def join(self, waiter: Waiter) -> None:
        """Wait after all others."""
        self._ledger.join(waiter)
        self._ledger.grant()

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting."""
        self._ledger.leave(waiter)
        self._ledger.grant()


class TenantReservation(Generic[T]):
    """Room in a tenant's ledger. A tenant without items has no entry, and all its room is free."""

    def __init__(self, tenants: TenantGatherer[T], key: TenantKey) -> None:
        self._tenants = tenants
        self.key = key
        self.items = 0
        self.size = 0

    def add(self, size: int) -> None:
        """Add one more item."""
        self.items += 1
        self.size += size

    @property
    def _shown(self) -> str:
        return repr_of(shown(self.key.tenant))

    @property
    def full(self) -> str:
        """A text saying that the ledger is full."""
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
        """Whether there would be enough capacity if all queued items were evicted."""
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
        """Evict the tenant's oldest queued item."""
        queue = self._tenants.known(self.key)
        return None if queue is None else self._tenants.evict_from(queue)

    def join(self, waiter: Waiter) -> None:
        """Wait for room; the tenant keeps its entry meanwhile, and its items do not linger."""
        queue = self._tenants.queue(self.key)
        queue.ledger.join(waiter)
        self._tenants.settle_room(queue)

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting."""
        queue = self._tenants.queue(self.key)
        queue.ledger.leave(waiter)
        self._tenants.settle_room(queue)
        self._tenants.forget(queue)


Reservation: TypeAlias = "WholeReservation[Any] | TenantReservation[Any]"
"""A group's room in one ledger."""


def tenant_reservations(
    gathering: Gathering[T], group: AddGroup[T], whole: Ledger
) -> list[TenantReservation[T]]:
    """Return the room needed in the tenants' ledgers, in the order of waiting; empty without caps.

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
    """Name the held keys, which may keep a ledger full for a long time."""
    return f"; held keys: {keys}" if keys else ""
