"""What has to have room before anything comes in: the part of the ledger of each tenant that it is
for, where those are bounded, and the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from .._core.ledger import Waiter
    from .dispatch import Engine
    from .gathering.add_group import AddGroup
    from .gathering.plain import Evicted

T = TypeVar("T")


class Bound(Protocol[T]):
    """Something that may be full, and what is to come into it: a tenant's part of the ledger, or
    the whole.
    """

    items: int
    size: int

    @property
    def full(self) -> str:
        """That it is full, in words."""
        ...

    @property
    def fits(self) -> bool:
        """Whether there is room now, without overtaking anybody."""
        ...

    @property
    def may_fit(self) -> bool:
        """Whether there would be if all went that no worker has taken."""
        ...

    def evict(self) -> Evicted[T] | None:
        """Give up the oldest item here that no worker has taken; `None` if there is none."""
        ...

    def join(self, waiter: Waiter) -> None:
        """Have `waiter` granted the room, now or when it comes free."""

    def leave(self, waiter: Waiter) -> None:
        """It is in, or gives up: what was kept for it is others' now."""


class Whole(Generic[T]):
    """The whole ledger."""

    def __init__(self, engine: Engine[T], parcel: AddGroup[T]) -> None:
        self._engine = engine
        self.items = len(parcel.items)
        self.size = sum(parcel.sizes)

    @property
    def full(self) -> str:
        """How full it is, in words."""
        return (
            f"the ledger is full ({self._engine.inside} of {self._engine.room.max_items} "
            f"items){behind(self._engine.accumulator.held_keys)}"
        )

    @property
    def fits(self) -> bool:
        """Whether there is room now, without overtaking anybody."""
        return self._engine.admits(self.items, self.size)

    @property
    def may_fit(self) -> bool:
        """Whether there would be if all went that no worker has taken."""
        engine = self._engine
        queued = engine.accumulator
        return engine.room.fits(
            engine.inside - queued.queued, self.items, self.size - queued.queued_bytes
        )

    def evict(self) -> Evicted[T] | None:
        """Give up the oldest item that no worker has taken, whosever it is."""
        return self._engine.accumulator.evict_oldest()

    def join(self, waiter: Waiter) -> None:
        """Wait behind everybody else."""
        self._engine.room.join(waiter)
        self._engine.room_freed()

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer."""
        self._engine.room.leave(waiter)
        self._engine.room_freed()


def behind(keys: int) -> str:
    """What may keep a ledger full for long."""
    return f"; held keys: {keys}" if keys else ""
