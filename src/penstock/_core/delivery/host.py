"""The Protocols of a delivery's surroundings: the batcher's books and slots, a fork's branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..clock import Clock, Signal
    from ..condition import Condition
    from ..errors import ErrorClass
    from ..outcome import Outcome
    from .tries import Tries


class Books(Protocol):
    """Receives outcomes, and news about the destination."""

    def settled(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        """Record the final outcome of these items."""

    def heard(self, errors: Iterable[BaseException]) -> None:
        """Record the errors of a write, or of a part of one, whatever becomes of its items."""

    def reported(self, source: object, condition: Condition | None) -> None:
        """Record the condition of a destination, as `source` knows it; `None`: available."""

    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None:
        """Record that `items` will be sent again after `delay` seconds, for errors of this class."""

    def throttled(self, until: float) -> None:
        """Record that the destination requested a pause."""


class Slots(Protocol):
    """Paces a delivery: clock, shutdown, backoffs, the flush slot and the flush timeout."""

    @property
    def clock(self) -> Clock:
        """The source of time."""
        ...

    @property
    def deadline(self) -> float | None:
        """When writes will be cut, once a shutdown has begun."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether a shutdown has begun."""
        ...

    @property
    def waits_for_repair(self) -> bool:
        """Whether batches wait for the repair of a destination that refuses everything."""
        ...

    async def pause(self, until: float, *signals: Signal, through_stop: bool) -> None:
        """Return at `until`, when a signal fires, or, unless `through_stop`, when a shutdown begins."""

    def give_slot(self) -> None:
        """Release the flush slot: every activity of the batch backs off."""

    async def take_slot(self) -> None:
        """Wait for a flush slot, ahead of fresh batches."""

    def force_slot(self) -> None:
        """Take a flush slot at once, over the limit if necessary."""

    def watch(self, activity: object) -> None:
        """Start the flush timeout of this activity from now."""

    def unwatch(self, activity: object) -> None:
        """Stop the flush timeout of this activity."""


class Branches(Protocol):
    """The branches of a fork, as the forked delivery sees them."""

    @property
    def members(self) -> frozenset[int]:
        """The forked items."""
        ...

    @property
    def has_stragglers(self) -> bool:
        """Whether a branch may be behind the required ones."""
        ...

    def verdict(self, index: int) -> Outcome:
        """The worst verdict of the required branches."""
        ...

    def has_part_of(self, index: int) -> bool:
        """Whether a required branch has applied the item."""
        ...

    def tries(self, index: int) -> Tries | None:
        """The failed tries of the branch that tried most often."""
        ...
