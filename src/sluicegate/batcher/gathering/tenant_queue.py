"""A tenant with pending items, and order per key within it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ..._core.batch import Reason
from ..._core.order.keys import shown
from ..report import TenantStats
from .eras import Waiting
from .keyed import KeyedGatherer

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ..ledger import Ledger
    from ..receipt import Resolvable
    from .gatherer import Gatherer, Gathering
    from .pack import Evicted, Leftover, Sealed
    from .window import AddWindow


T = TypeVar("T")


class TenantKey(NamedTuple):
    """An item's tenant, and its key within the tenant."""

    tenant: Hashable
    key: Hashable
    weight: float = 1.0
    """The weight, looked up before the item is accepted, since the lookup may fail."""


class TenantQueue(Generic[T]):
    """A tenant's gatherer, its part of the ledger and its batches in flight."""

    __slots__ = (
        "_pack", "flying", "gatherer", "holds", "identity", "key", "ledger", "tenant", "weight",
        "window",
    )  # fmt: skip

    def __init__(
        self, key: TenantKey, gathering: Gathering[T], ledger: Ledger, window: AddWindow
    ) -> None:
        self.tenant, _, self.weight = key
        self.key = TenantKey(self.tenant, None, self.weight)
        """The `TenantKey` of an item without a key."""
        self.gatherer = gathering.gatherer
        self.identity = gathering.identity
        self.holds = gathering.holds
        self.window = window
        """The fast path into its open batch; closed while that is empty, since the first item's
        time must be noted."""
        self._pack = gathering.pack
        self.ledger = ledger
        """The tenant's part of the ledger; a batch's items leave it together, at the end of the
        write.
        """
        self.flying = 0
        """Number of batches in flight or backing off."""

    @property
    def held_keys(self) -> int:
        """Number of held keys."""
        return 0 if self.holds is None else self.holds.keys

    @property
    def is_idle(self) -> bool:
        """Whether it has no items, no producers and no held keys."""
        ledger = self.ledger
        return not (ledger.inside or ledger.waiting or ledger.granted or self.held_keys)

    def change(self) -> Gatherer[T]:
        """Return its gatherer for a change of state: the fast path stays closed until `changed`."""
        self.window.close()
        return self.gatherer

    def changed(self) -> None:
        """Open the fast path, unless the batch is empty or a key is held."""
        pack = self._pack
        is_open = bool(pack.items) and not self.held_keys
        self.window.open(pack, self.gatherer.spare if is_open else 0)  # drops the last batch's list

    def appends(self, item: T, receipt: Resolvable | None) -> bool:
        """Append an item of a group if its fast path is open; return whether it was open.

        Not for keyed tenants: the key function must not be called again.
        """
        window = self.window
        filled = len(window.items)
        if filled >= window.try_limit or self.identity is not None:
            return False
        if receipt is not None:
            window.receipts[filled] = receipt
        window.items.append(item)
        return True

    def grant(self, now: float) -> None:
        """Grant free room to producers; while another one waits, the open batch does not linger."""
        ledger = self.ledger
        ledger.grant()
        if ledger.waiting and not ledger.granted and not self.flying and not self.gatherer.is_ready:
            self.change().seal(Reason.PRESSURE, now)

    def took(self) -> None:
        """Count a batch that begins its flight."""
        self.flying += 1

    def landed(self, items: int, size: int) -> None:
        """Count a batch that has ended its flight; its items leave the ledger."""
        self.flying -= 1
        self.ledger.landed(items, size)

    def stats(self, now: float) -> TenantStats:
        """Return a snapshot."""
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


class TenantKeyedGatherer(KeyedGatherer[T]):
    """A tenant's keyed gatherer, which uses only the time of `wake`.

    A tenant's first item and items of a tenant with held keys take the slow path, so an item of the
    fast path has no other effect. The fast path does not pass the time: it is read when needed.
    """

    def pass_by(self, item: T, key: Hashable) -> None:
        """Put an item into its lane, past the open batch."""
        self._now = at = self._wake(False)
        receipts = self.pack.receipts
        receipt = receipts.pop(len(self.pack.items), None) if receipts else None
        self._lanes.wait(Waiting(key, item, 0, receipt, at=at, era=self._numbers.last + 1))
        self._window.passed_by()

    def done(
        self, batch: Sealed[T], ended: Sequence[int] | None = None, back: Sequence[int] = ()
    ) -> Sequence[Leftover[T]]:
        """Free the keys of `ended` items, by default of all; return the items that fail."""
        self._now = self._wake(False)
        return super().done(batch, ended, back)

    def evict_oldest(self) -> Evicted[T] | None:
        """Evict the first item of the oldest batch, or of an older lane."""
        self._now = self._wake(False)
        return super().evict_oldest()
