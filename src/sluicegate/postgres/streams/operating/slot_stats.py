"""The state of a subscription in each slot, with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..messages.appender import OpenAppender
    from .log_stats import HorizonStats


@dataclass(frozen=True, slots=True)
class SlotStats:
    """A stored slot of a subscription, and its unread messages."""

    slot: int
    position: int
    """Every message of the slot before this position is settled."""
    messages: int
    """Number of unhandled messages up to the horizon, at most `count_to`."""
    oldest: int | None
    """The position of the first unhandled message."""
    seconds: float
    """The age of that message, in seconds; 0 without one."""
    owner: str | None
    """The process that holds a lease of it."""
    lease_left: float | None
    """Seconds until that lease expires unless it is extended."""
    is_paused: bool
    """Whether the slot is paused, or the whole subscription."""
    missed: int
    """Number of messages that were deleted before they were handled."""
    has_settled: bool
    """Whether messages after the position are already settled."""
    waits_for_horizon: bool
    """Whether there are messages beyond the horizon."""


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    """A subscription, with the state and reason of each of its slots."""

    name: str
    selection: str
    """The streams that it reads."""
    start: str
    """Its start point, or the point of its last reset."""
    is_paused: bool
    members: int
    """Number of processes that hold leases, or were seen within the last `lease` seconds."""
    skipped: tuple[int, ...]
    """The positions of messages that were skipped."""
    horizon: HorizonStats
    appender: OpenAppender | None
    """The oldest open transaction that appends."""
    slots: tuple[SlotStats, ...]

    def reason(self, slot: SlotStats) -> str | None:
        """Return why this slot does not advance; `None` if it has no unread messages."""
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
        """Why messages cannot be read yet; `None` if all can be read, or the cause is unknown."""
        if not self.horizon.distance or self.appender is None:
            return None
        return (
            f"an open transaction that appends holds the horizon at {self.horizon.position} of "
            f"{self.horizon.last} ({self.appender})"
        )
