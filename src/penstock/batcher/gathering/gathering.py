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
    """The open batch; with tenants, the way into theirs."""
    identity: Callable[..., Hashable] | None = None
    """The identity of an item's key or tenant, from the item and what the fast path has looked up;
    `None` without.
    """
    identities: Callable[..., tuple[Hashable, ...]] | None = None
    """As `identity`, of several items."""
    holds: Holding | None = None
    """`None` without keys."""

    @property
    def held_keys(self) -> int:
        """Keys stopped by a failed item."""
        return 0 if self.holds is None else self.holds.keys

    @property
    def held_items(self) -> int:
        """Their queued items."""
        return 0 if self.holds is None else self.holds.items
