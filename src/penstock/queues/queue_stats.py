"""The figures of a queue at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .._clients.postgres.streams.appender import OpenAppender

if TYPE_CHECKING:
    from datetime import datetime

    from .settings import QueueSettings

LaneState = Literal["ready", "leased", "delayed", "blocked", "parked"]


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A queue as it is stored."""

    name: str
    settings: QueueSettings
    is_paused: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What is in a queue. Counts end at `count_to`.

    Keys are counted by their lanes, which a claim makes, so those whose bells are not merged yet are
    in `bells` only. A job without a key counts like a key.
    """

    is_paused: bool
    jobs: int
    """Jobs that are not done, delayed ones and those of blocked or parked keys included."""
    ready: int
    """Keys that a claim may lease, and keys whose lease has expired."""
    delayed: int
    """Jobs that are due later."""
    leased: int
    """Leases that have not expired."""
    blocked: int
    parked: int
    dead: int
    """Dead letters."""
    bells: int
    """Keys of statements that enqueued, which no claim has merged yet."""
    members: int
    """Consumers that were seen within their time."""
    oldest_seconds: float
    """Seconds for which the key that waits longest has been ready; 0 if none is."""
    next_due: float | None
    """Seconds until the next delayed job is due."""
    unowned_slots: int | None = None
    """Slots of the ring that no consumer owns which was seen; `None` unless the queue is sticky."""


@dataclass(frozen=True, slots=True)
class LaneStats:
    """A key with work, as it is stored."""

    key: str
    """Empty for the one lane of a queue with `ordering_required`."""
    slot: int
    state: LaneState
    jobs: int
    """Its jobs, at most `count_to`; delayed ones are not among them."""
    place: int | None
    """The place of the first of them."""
    seconds: float
    """Its age; 0 without one."""
    attempts: int
    """How often that job was leased."""
    priority: int
    group: str | None
    """The group of the consumer with the lease."""
    owner: str | None
    """The consumer with the lease."""
    lease_left: float | None
    """Seconds until the lease ends; negative if it has."""
    due_in: float
    """Seconds until the lane is due; negative since when it is."""
    stopped: float | None
    """Seconds since the key was blocked or parked."""
    reason: str | None
    """Why it was."""


@dataclass(frozen=True, slots=True)
class MemberStats:
    """A consumer of a group, as it was last seen."""

    group: str
    consumer: str
    seen: float
    """Seconds since then."""
    is_live: bool


@dataclass(frozen=True, slots=True)
class RangeStats:
    """Slots of the ring, and the consumer that owns them."""

    group: str
    lo: int
    hi: int
    consumer: str
    is_draining: bool
    """Whether an earlier owner may still have leases in it."""
    is_live: bool
    """Whether the consumer was seen within its time."""
    seen: float | None
    """Seconds since it was seen last; `None` if never."""
    waits_for: str | None
    """The earlier owner with the lease that ends last."""
    wait_left: float | None
    """Seconds until that lease ends, unless it is extended."""

    @property
    def why_not_served(self) -> str | None:
        """Why keys of the range are not given to its owner."""
        if self.waits_for is not None:
            left = f"{self.wait_left or 0:.0f} s left"
            return (
                f"the range {self.lo}-{self.hi} drains for {self.waits_for}, whose lease has {left}"
            )
        if self.is_live:
            return None
        seen = "was never seen" if self.seen is None else f"was last seen {self.seen:.0f} s ago"
        return f"its consumer {self.consumer} {seen}"


class OpenTransaction(OpenAppender):
    """An open transaction that holds jobs back, or keeps vacuum from removing rows."""
