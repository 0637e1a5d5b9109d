"""The counts of all outcomes and of pending items."""

from __future__ import annotations

from dataclasses import dataclass

from .outcome import Outcome


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
        """Accepted and not dropped: `flushed_ok + flushed_fail + dropped_on_shutdown + inside`."""
        return self.accepted - self.dropped

    @property
    def flushed_ok(self) -> int:
        """Delivered, duplicate, spooled or dead-lettered items."""
        return self.delivered + self.duplicate + self.spooled + self.dead_lettered

    @property
    def flushed_fail(self) -> int:
        """Rejected or unknown items."""
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
