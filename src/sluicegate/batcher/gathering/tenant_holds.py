"""The held keys of all tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .tenants import owner_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .gatherer import Holding
    from .pack import Sealed
    from .tenant_queue import TenantKey, TenantQueue
    from .tenants import TenantGatherer

T = TypeVar("T")


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
