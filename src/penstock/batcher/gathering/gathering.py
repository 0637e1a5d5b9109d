"""A gatherer with the parts that belong to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .gatherer import Gatherer, Holding, Shape
    from .pack import Pack

T = TypeVar("T")


class Gathering(NamedTuple, Generic[T]):
    """A gatherer, and what belongs to it."""

    gatherer: Gatherer[T]
    shape: Shape
    pack: Pack[T]
    """The open batch; for tenants one that stays empty."""
    identity: Callable[[T], Hashable] | None = None
    """What stands for an item's key or tenant; `None` without."""
    holds: Holding | None = None
    """Absent without keys."""

    @property
    def held_keys(self) -> int:
        """Keys that a failed item has stopped."""
        return 0 if self.holds is None else self.holds.keys

    @property
    def held_items(self) -> int:
        """Their queued items."""
        return 0 if self.holds is None else self.holds.items
