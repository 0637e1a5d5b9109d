"""Where a subscription stands in each slot, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._clients.postgres.streams.appender import OpenAppender
    from .log_stats import HorizonStats


@dataclass(frozen=True, slots=True)
class SlotStats:
    """A slot of a subscription as it is stored, and what is unread in it."""

    slot: int
    position: int
    """Every message of the slot before this position is settled."""
    messages: int
    """Unhandled messages up to the horizon, at most `count_to`."""
    oldest: int | None
    """The position of the first of them."""
    seconds: float
    """Its age; 0 without one."""
    owner: str | None
    """The process that holds it by a lease."""
    lease_left: float | None
    """Seconds until that lease ends unless it is extended."""
    is_paused: bool
    """Whether the slot is paused, or the whole subscription."""
    missed: int
    """Messages that were deleted before they had been handled."""
    has_settled: bool
    """Whether messages behind the position are settled already."""
    waits_for_horizon: bool
    """Whether there are messages beyond the horizon."""


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    """A subscription, and why each of its slots stands where it does."""

    name: str
    selection: str
    """The streams that it reads."""
    start: str
    """Where it began, or was reset to."""
    is_paused: bool
    members: int
    """Processes that hold leases, or were seen within the last `lease` seconds."""
    skipped: tuple[int, ...]
    """The positions of messages that were skipped."""
    horizon: HorizonStats
    appender: OpenAppender | None
    """The oldest open transaction that appends."""
    slots: tuple[SlotStats, ...]

    def reason(self, slot: SlotStats) -> str | None:
        """Why this slot stands; `None` if it has nothing to do."""
        if slot.position > self.horizon.last + 1:
            return f"beyond the end of the log ({self.horizon.last}): an older copy was restored"
        if not slot.messages:
            return "its next message is beyond the horizon" if slot.waits_for_horizon else None
        if slot.is_paused:
            return "paused"
        if slot.owner is None:
            return "no process holds it" if self.members else "no process serves the subscription"
        return f"held by {slot.owner}, whose lease has {slot.lease_left or 0:.0f} s left"

    @property
    def why_horizon_stands(self) -> str | None:
        """Why messages cannot be read yet that have their positions already."""
        if not self.horizon.distance or self.appender is None:
            return None
        return (
            f"an open transaction that appends holds the horizon at {self.horizon.position} of "
            f"{self.horizon.last} ({self.appender})"
        )
