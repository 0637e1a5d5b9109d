"""Order per key within a tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .eras import Waiting
from .keyed import KeyedGatherer

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .pack import Evicted, Leftover, Sealed

T = TypeVar("T")


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
