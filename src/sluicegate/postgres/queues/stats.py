"""The figures of a queue at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..records.access import OpenAppender

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .settings import QueueSettings


LaneState = Literal["ready", "leased", "delayed", "blocked", "parked"]


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A queue with its stored settings."""

    name: str
    settings: QueueSettings
    is_paused: bool
    created_at: datetime
    is_new: bool = field(default=False, compare=False)
    """Whether the call of `create` that returned it has created the queue."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The contents of a queue. Counts are limited to `count_to`.

    Keys are counted by their lanes. Lanes are created by claims, so keys whose bells are not merged
    yet are counted only in `bells`. A job without a key counts as a key.
    """

    is_paused: bool
    jobs: int
    """Jobs that are not done, including delayed ones and those of blocked or parked keys."""
    ready: int
    """Keys that a claim may lease, including keys whose lease has expired."""
    delayed: int
    """Jobs that are due later."""
    leased: int
    """Leases that have not expired."""
    blocked: int
    parked: int
    dead: int
    """Dead letters."""
    bells: int
    """Keys with newly enqueued jobs that no claim has merged yet."""
    members: int
    """Live consumers."""
    oldest_seconds: float
    """Seconds for which the longest waiting key has been ready; 0 if none is ready."""
    next_due: float | None
    """Seconds until the next delayed job is due."""
    unowned_slots: int | None = None
    """Slots of the ring without a live owner; `None` unless the queue is sticky."""
    without_lane: int = 0
    """Keys with jobs that no claim finds, of the first 1,000 and of the 1,000 oldest jobs: they were
    inserted without the trigger, as with `session_replication_role = replica`.
    """


@dataclass(frozen=True, slots=True)
class LaneStats:
    """The stored state of a key with work."""

    key: str
    """Empty for the only lane of a queue with `ordering_required`."""
    slot: int
    state: LaneState
    jobs: int
    """Number of its jobs, without delayed ones, at most `count_to`."""
    place: int | None
    """The place of its first job."""
    seconds: float
    """The age of that job in seconds; 0 if there is none."""
    attempts: int
    """Number of times that job was leased."""
    priority: int
    group: str | None
    """The group of the consumer with the lease."""
    owner: str | None
    """The consumer with the lease."""
    lease_left: float | None
    """Seconds until the lease ends; negative if it has ended."""
    due_in: float
    """Seconds until the lane is due; negative if it is overdue."""
    stopped: float | None
    """Seconds since the key was blocked or parked."""
    reason: str | None
    """The reason for it."""


@dataclass(frozen=True, slots=True)
class MemberStats:
    """A consumer of a group, as last seen."""

    group: str
    consumer: str
    seen: float
    """Seconds since it was last seen."""
    is_live: bool


@dataclass(frozen=True, slots=True)
class RangeStats:
    """A range of slots of the ring, and its owner."""

    group: str
    lo: int
    hi: int
    consumer: str
    is_draining: bool
    """Whether an earlier owner may still have leases in it."""
    is_live: bool
    """Whether the consumer is live."""
    seen: float | None
    """Seconds since it was last seen; `None` if never."""
    waits_for: str | None
    """The earlier owner with the lease that ends last."""
    wait_left: float | None
    """Seconds until that lease ends, unless it is extended."""

    @property
    def why_not_served(self) -> str | None:
        """The reason why keys of the range are not assigned to its owner."""
        if self.waits_for is not None:
            left = f"{self.wait_left or 0:.0f} s left"
            return (
                f"the range {self.lo}-{self.hi} drains for {self.waits_for}, whose lease has {left}"
            )
        if self.is_live:
            return None
        seen = "was never seen" if self.seen is None else f"was last seen {self.seen:.0f} s ago"
        return f"its consumer {self.consumer} {seen}"


class ScheduleStats(NamedTuple):
    """A schedule, and when its next tick is due."""

    name: str
    is_paused: bool
    due_in: float | None
    """Seconds until its next tick; negative if it is overdue, `None` if it has none."""


class OpenTransaction(OpenAppender):
    """An open transaction that holds back jobs, or prevents vacuum from removing rows."""


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The figures of the queues in a schema, from one reading."""

    queues: Mapping[str, QueueStats | None]
    """By name; `None` for a queue that could not be read in time."""
    paused: Mapping[str, bool]
    """Whether each queue is paused, including queues that could not be read."""
    dead_rows: Mapping[str, int]
    """Dead rows of the queue tables, as estimated by the server."""
    sizes: Mapping[str, int]
    """Bytes of those tables, including their indexes."""
