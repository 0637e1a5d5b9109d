"""The figures of a log at one point in time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..records.access import OpenAppender


@dataclass(frozen=True, slots=True)
class HorizonStats:
    """The position up to which a log can be read."""

    position: int
    """Every message at or before this position is visible, or never will be."""
    last: int
    """The last assigned position."""
    appender_age: float | None
    """Age of the oldest open transaction that appends, in seconds; `None` without one, or if the
    role may not see it.
    """
    age: float = 0.0
    """Seconds for which the monitor has seen the horizon at this position, behind `last`."""

    @property
    def distance(self) -> int:
        """Number of positions that cannot be read yet."""
        return self.last - self.position


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unhandled messages of a subscription."""

    messages: int
    """Number of messages up to the horizon, at most the monitor's `count_to`."""
    seconds: float
    """Age of the oldest one, in seconds; 0 without any."""
    waiting_slots: int
    """Number of slots with unhandled messages."""
    unowned_slots: int | None
    """Number of these slots without a live lease; `None` if there never was a lease."""


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """The state of a stored subscription."""

    members: int | None
    """Number of processes seen within the last `lease` seconds; `None` if the subscription never
    had a lease, as with advisory locks, whose processes are not counted.
    """
    is_paused: bool
    paused_slots: int
    missed: int
    """Number of messages that were deleted before they were handled."""
    backlog: Backlog | None
    """`None` if it could not be read in time."""

    def with_backlog(self, backlog: Backlog | None) -> SubscriptionStats:
        """Return a copy with this backlog; `None` if it could not be read in time.

        Without known members, `unowned_slots` is `None`.
        """
        if backlog is not None and self.members is None:
            backlog = replace(backlog, unowned_slots=None)
        return replace(self, backlog=backlog)


@dataclass(frozen=True, slots=True)
class TableStats:
    """A table, from the server's statistics."""

    live_rows: int
    dead_rows: int
    size: int
    """Size in bytes, including indexes."""


@dataclass(frozen=True, slots=True)
class LogFigures:
    """The figures of one poll of a log."""

    horizon: HorizonStats
    subscriptions: Mapping[str, SubscriptionStats]
    parked_keys: Mapping[str, int]
    """Number of parked keys by consumer."""
    tables: Mapping[str, TableStats]


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
    message: str | None
    """That message: its type, and the version and name of its stream."""
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
