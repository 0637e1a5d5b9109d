"""The figures of a log at one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class HorizonStats:
    """How far a log can be read."""

    position: int
    """Every message at or before this position is visible, or never will be."""
    last: int
    """The last position that was handed out."""
    appender_age: float | None
    """Seconds since the oldest open transaction began that appends; `None` without one, or if the
    role may not see it."""
    age: float = 0.0
    """Seconds for which the monitor has seen the horizon at this position behind `last`."""

    @property
    def distance(self) -> int:
        """Positions that cannot be read yet."""
        return self.last - self.position


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a subscription has not handled."""

    messages: int
    """Messages up to the horizon, at most the monitor's `count_to`."""
    seconds: float
    """Age of the oldest of them; 0 without any."""
    waiting_slots: int
    """Slots that have some."""
    unowned_slots: int | None
    """Those of them that no process holds by a lease; `None` if there never was a lease."""


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """A subscription as it is stored."""

    members: int | None
    """Processes that were seen within the last `lease` seconds; `None` if the subscription never
    had a lease, as with advisory locks, whose processes are not counted."""
    is_paused: bool
    paused_slots: int
    missed: int
    """Messages that were deleted before they had been handled."""
    backlog: Backlog | None
    """`None` if it could not be read in time."""

    def with_backlog(self, backlog: Backlog | None) -> SubscriptionStats:
        """This, with what was not handled."""
        if backlog is not None and self.members is None:
            backlog = replace(backlog, unowned_slots=None)
        return replace(self, backlog=backlog)


@dataclass(frozen=True, slots=True)
class TableStats:
    """A table as the server's statistics have it."""

    live_rows: int
    dead_rows: int
    size: int
    """Bytes, with its indexes."""


@dataclass(frozen=True, slots=True)
class LogFigures:
    """What one look at a log has found."""

    horizon: HorizonStats
    subscriptions: Mapping[str, SubscriptionStats]
    parked_keys: Mapping[str, int]
    """Parked keys by consumer."""
    tables: Mapping[str, TableStats]


@dataclass(frozen=True, slots=True)
class LogStats:
    """The state of a `StreamMonitor`, with what its last look has found."""

    state: Literal["open", "closed"]
    looks: int
    """Looks that were completed."""
    failed: int
    """Queries that failed, each counted once per look."""
    figures: LogFigures | None = None
    """`None` before the first look, after one that failed, and when the last one is too old."""
