"""The fast path with tenants: from one list to each tenant's open batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..._core.order.keys import PLAIN, identity
from .window import Known, NeedsSlowPath

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .tenant_queue import TenantQueue
    from .window import AddWindow

T = TypeVar("T")


class TenantRouter(list[Any], Generic[T]):
    """The list that the fast path appends to; passes each item on to its tenant's open batch.

    The list itself contains a `None` for each item, since the ledger counts the items of the fast
    path by its length.
    """

    __slots__ = ("_on_error", "_queues", "_tenant_of", "_window")

    join = list[Any].append
    """Count an item."""

    def __init__(
        self,
        tenant: Callable[[T], object],
        queues: dict[Hashable, TenantQueue[T]],
        window: AddWindow,
        on_error: Callable[[BaseException], object],
    ) -> None:
        self._tenant_of = tenant
        self._queues = queues
        self._window = window
        self._on_error = on_error

    def append(self, item: T, /) -> None:
        """Append an item to its tenant's open batch.

        Raises `NeedsSlowPath` with the tenant if the tenant's window has no room, and the
        functions' errors. In both cases the item was not accepted, and its receipt is no longer
        kept.
        """
        whole = self._window
        receipts = whole.receipts
        receipt = receipts.pop(len(self), None) if receipts else None
        try:
            tenant = self._tenant_of(item)
            if type(tenant) not in PLAIN:
                tenant = identity(tenant, "tenant")
        except Exception as error:
            self._on_error(error)
            raise
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
