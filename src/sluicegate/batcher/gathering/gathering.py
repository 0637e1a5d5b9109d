"""A gatherer with its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .gatherer import Gatherer, Holding, Shape
    from .pack import Pack

T = TypeVar("T")


class Gathering(NamedTuple, Generic[T]):
    """A gatherer and its parts."""

    gatherer: Gatherer[T]
    shape: Shape
    pack: Pack[T]
    """The open batch; with tenants, the router to their open batches."""
    identity: Callable[..., Hashable] | None = None
    """Returns the identity of an item's key or tenant, from the item and the values that the fast
    path has looked up; `None` without keys and tenants.
    """
    identities: Callable[..., tuple[Hashable, ...]] | None = None
    """Like `identity`, for several items."""
    holds: Holding | None = None
    """The held keys; `None` without keys."""

    @property
    def held_keys(self) -> int:
        """Number of keys stopped by a failed item."""
        return 0 if self.holds is None else self.holds.keys

    @property
    def held_items(self) -> int:
        """Number of queued items of held keys."""
        return 0 if self.holds is None else self.holds.items
