"""The final outcomes of items, their order from good to bad, and the counts of all items by state."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outcome(enum.Enum):
    """The final state of an accepted item."""

    __hash__ = object.__hash__  # one C call; Enum's own hash is Python code

    DELIVERED = "delivered"
    DUPLICATE = "duplicate"
    """Already applied by an earlier attempt of Sluicegate."""
    SPOOLED = "spooled"
    DEAD_LETTERED = "dead_lettered"
    REJECTED = "rejected"
    """Failed for good, not applied, and in no dead-letter sink."""
    DROPPED = "dropped"
    """Dropped by an overflow policy."""
    UNSENT = "unsent"
    """Known not to be applied when the batcher stopped; returned in the report."""
    UNKNOWN = "unknown"
    """A write was cut off: the item may have been applied."""

    is_success: bool
    """Whether the item is stored where it was sent: delivered, duplicate or spooled. `deliver` and
    awaited receipts return only these outcomes.
    """
    is_safe: bool
    """Whether the item is not lost and need not be resent: a success, or dead-lettered."""

    def __init__(self, value: str) -> None:  # plain attributes, for fast access
        self.is_success = value in {"delivered", "duplicate", "spooled"}
        self.is_safe = self.is_success or value == "dead_lettered"


SAFE = frozenset(outcome for outcome in Outcome if outcome.is_safe)

_BADNESS = (
    Outcome.DUPLICATE, Outcome.DELIVERED, Outcome.SPOOLED, Outcome.DEAD_LETTERED,
    Outcome.DROPPED, Outcome.UNSENT, Outcome.REJECTED, Outcome.UNKNOWN,
)  # fmt: skip


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of an item's outcomes on several branches.

    `unsent` guarantees that the item was not applied anywhere, so together with a safe outcome it
    becomes `unknown`.
    """
    seen = set(outcomes)
    answer = max(seen, key=_BADNESS.index)
    return Outcome.UNKNOWN if answer is Outcome.UNSENT and seen & SAFE else answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of accepted items by state, which add up at every moment.

    Items refused at `add` were never accepted; `refused` counts them separately. `withdrawn` and
    `returned` say how many of the failed items are not lost, since their source has them.
    """

    accepted: int = 0
    delivered: int = 0
    duplicate: int = 0
    spooled: int = 0
    dead_lettered: int = 0
    rejected: int = 0
    dropped: int = 0
    unsent: int = 0
    unknown: int = 0
    queued: int = 0
    """Items in the open batch, or in sealed batches not yet taken by a worker."""
    in_flight: int = 0
    backing_off: int = 0
    refused: int = 0
    withdrawn: int = 0
    """Unsent items that their source has taken back, as a pipe does when a partition moves."""
    returned: int = 0
    """Rejected, unknown or unsent items whose source has them, and decides about them: the rows of
    a pipe. Includes the withdrawn ones.
    """

    @property
    def settled(self) -> int:
        """Items with an outcome."""
        return sum(self.of(outcome) for outcome in Outcome)

    @property
    def inside(self) -> int:
        """Items without an outcome."""
        return self.queued + self.in_flight + self.backing_off

    @property
    def enqueued(self) -> int:
        """Items accepted, and not dropped by
        overflow.
        """
        return self.accepted - self.dropped

    @property
    def flushed_ok(self) -> int:
        """Delivered, duplicate, spooled or dead-lettered items."""
        return self.delivered + self.duplicate + self.spooled + self.dead_lettered

    @property
    def flushed_fail(self) -> int:
        """Items that were rejected, or whose outcome is unknown."""
        return self.rejected + self.unknown

    @property
    def dropped_on_shutdown(self) -> int:
        """Items returned unsent at shutdown."""
        return self.unsent

    @property
    def lost(self) -> int:
        """Rejected, unknown, dropped or unsent items that no source has."""
        failed = self.rejected + self.unknown + self.dropped + self.unsent
        return max(0, failed - self.returned)

    def of(self, outcome: Outcome) -> int:
        """Return the count of one outcome."""
        return int(getattr(self, outcome.value))

    def verify(self) -> None:
        """Raise `AssertionError` unless the counts add up."""
        if self.accepted != self.settled + self.inside:
            counts = f"{self.accepted} accepted, {self.settled} settled, {self.inside} inside"
            raise AssertionError(f"the tally does not add up: {counts}: {self}")
        if not self.withdrawn <= self.unsent or not self.withdrawn <= self.returned:
            raise AssertionError(f"more items are withdrawn than unsent or returned: {self!r}")
        if self.returned > self.rejected + self.unknown + self.unsent:
            raise AssertionError(f"more items are returned than have failed: {self!r}")

    def __str__(self) -> str:
        counts = {outcome.value: self.of(outcome) for outcome in Outcome}
        counts["unsent"] -= self.withdrawn
        for name in ("withdrawn", "queued", "in_flight", "backing_off", "refused"):
            counts[name] = getattr(self, name)
        parts = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
        line = f"{self.accepted} accepted" + (": " + ", ".join(parts) if parts else "")
        if self.returned > self.withdrawn:
            line = f"{line}; {self.returned} returned to the source"
        return line
