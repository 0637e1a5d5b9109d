"""The protocols of gatherers.

A gatherer decides when a batch is full, when it is due and which one is next, without clock, task
or I/O. It books entries to and exits from its queue on the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ..._core.batch import Reason
    from ..._core.clock import Clock
    from .pack import AddGroup, Evicted, Leftover, Matches, Pack, Sealed


T = TypeVar("T")

Wake = Callable[[bool], float]
"""Makes the dispatcher advance immediately, or when a batch that begins now is due; returns the
time. Only the fast path calls it: all other paths end in `advance` anyway.
"""


class HasClock(Protocol):
    """An object with the clock, which changes when the batcher opens."""

    clock: Clock


@dataclass(slots=True)
class Shape:
    """The conditions under which a batch is complete. Durations are in seconds."""

    max_items: int
    max_bytes: int | None
    max_delay: float
    sized: bool
    """Whether items are measured."""

    def resize(self, max_items: int) -> None:
        """Change `max_items` for all queued items."""
        self.max_items = max_items


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counts of a gatherer's queued items."""

    open_items: int
    sealed: int
    """Number of sealed batches that no worker has taken."""
    oldest_at: float | None
    """The time at which the oldest queued item was accepted."""


class Gatherer(Protocol[T]):
    """Gathers items into batches. Times are monotonic seconds, given by the caller."""

    @property
    def spare(self) -> int:
        """Number of items that the fast path may append without further effect."""
        ...

    def offer(self, group: AddGroup[T], now: float) -> Sequence[Leftover[T]]:
        """Accept items; return those that fail because of their key (see `parking`)."""
        ...

    def seal(self, reason: Reason, now: float) -> None:
        """Seal the open batch unless it is empty; with `SIZE` only a full one."""

    def due_at(self) -> float | None:
        """Return the time at which the next open batch is due; `None` without one."""
        ...

    def take(self, now: float) -> Sealed[T] | None:
        """Return the next batch to write; `None` if none is ready."""
        ...

    def done(
        self, batch: Sealed[T], ended: Sequence[int] | None = None, back: Sequence[int] = ()
    ) -> Sequence[Leftover[T]]:
        """Note that the write of a batch has ended, or backs off while the items `ended` have an
        outcome.

        The items `back` wait again. Returns the items that fail because of it.
        """
        ...

    def evict_oldest(self) -> Evicted[T] | None:
        """Evict the oldest queued item; return `None` if there is none."""
        ...

    def clear(self, now: float) -> list[Leftover[T]]:
        """Evict all queued items."""
        ...

    def withdraw(self, matches: Matches, now: float) -> list[Leftover[T]]:
        """Evict the queued items with matching receipts; keys without further items are free."""
        ...

    def resubmit(self, group: AddGroup[T], now: float) -> Sequence[Leftover[T]]:
        """Like `offer`, for items of one key, in front of those that wait in its lane."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a batch is ready, regardless of the time."""
        ...

    def queued_until(self, number: int) -> int:
        """Count the queued items up to this batch number, without those of held keys."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the current counts across all lanes and tenants."""
        ...


class Holding(Protocol):
    """The keys stopped by failed items."""

    @property
    def keys(self) -> int:
        """Number of held keys."""
        ...

    @property
    def items(self) -> int:
        """Number of queued items of held keys."""
        ...

    def until(self, number: int) -> int:
        """Count the queued items of held keys up to this batch number."""
        ...

    def stop(self, batch: Sealed[Any], indices: Sequence[int]) -> None:
        """Hold the keys of these items: later items wait until `let_go`."""

    def is_going(self, key: Hashable) -> bool:
        """Return whether items of a held key are in a batch."""
        ...

    def let_go(self, key: Hashable, now: float) -> int:
        """Release a key; return its number of held items."""
        ...

    def begin_stop(self) -> None:
        """From now on, return held items instead of failing or spilling them."""


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
