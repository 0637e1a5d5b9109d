"""A tenant with items inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ..._core.lineage import Reason
from ..._core.order.keys import shown
from ..report import TenantStats

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..._core.ledger import Ledger
    from .gathering import Gathering

T = TypeVar("T")


class TenantKey(NamedTuple):
    """An item's tenant, and its key there."""

    tenant: Hashable
    key: Hashable
    weight: float = 1.0
    """Looked up before the item is accepted, since the lookup may fail."""


class TenantQueue(Generic[T]):
    """A tenant's gatherer, its part of the ledger and its batches in flight."""

    __slots__ = ("flying", "gatherer", "holds", "identity", "ledger", "tenant", "weight")

    def __init__(
        self, tenant: Hashable, weight: float, gathering: Gathering[T], ledger: Ledger
    ) -> None:
        self.tenant = tenant
        self.weight = weight
        self.gatherer = gathering.gatherer
        self.identity = gathering.identity
        self.holds = gathering.holds
        self.ledger = ledger
        """A batch's items leave it together, at the end of the write."""
        self.flying = 0
        """Batches in flight or backing off."""

    @property
    def held_keys(self) -> int:
        """Keys that are held."""
        return 0 if self.holds is None else self.holds.keys

    @property
    def is_idle(self) -> bool:
        """Whether it has no items, no producers and no held keys."""
        ledger = self.ledger
        return not (ledger.inside or ledger.waiting or ledger.granted or self.held_keys)

    def grant(self, now: float) -> None:
        """Grant free room to producers; while one still waits, the open batch does not linger."""
        ledger = self.ledger
        ledger.grant()
        if ledger.waiting and not ledger.granted and not self.flying and not self.gatherer.is_ready:
            self.gatherer.seal(Reason.PRESSURE, now)

    def took(self) -> None:
        """Count a batch into flight."""
        self.flying += 1

    def landed(self, items: int, size: int) -> None:
        """Count a batch out of flight; its items leave the ledger."""
        self.flying -= 1
        self.ledger.landed(items, size)

    def stats(self, now: float) -> TenantStats:
        """A snapshot."""
        oldest = self.gatherer.snapshot().oldest_at
        return TenantStats(
            tenant=shown(self.tenant),
            inside=self.ledger.inside,
            queued=self.ledger.queued,
            in_flight_batches=self.flying,
            held_keys=self.held_keys,
            held_items=0 if self.holds is None else self.holds.items,
            waiting_producers=self.ledger.waiting,
            oldest_age=None if oldest is None else now - oldest,
        )
