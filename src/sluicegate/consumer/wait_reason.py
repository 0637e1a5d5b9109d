"""Reasons why a partition, or its oldest unfinished message, does not advance."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WaitReason(StrEnum):
    """A reason in `Consumer.explain()`, as shown to operators.

    `docs/how-to/why-is-it-stuck.md` explains each.
    """

    # of the oldest unfinished message
    RUNNING = "running"
    DEAF = "deaf"
    BACKING_OFF = "backing off"
    READY = "waiting for a worker"
    QUEUED_BEHIND = "queued behind"
    BLOCKED = "blocked"
    MANUAL = "waiting for settle()"
    JOB = "waiting for its job"
    NO_ROOM = "no room for its job"
    IN_BATCHER = "in the batcher"
    DEAD_LETTER = "writing a dead letter"
    PARKING = "writing to the park store"
    GIVING_BACK = "being given back"
    FORMING = "batch being formed"
    ARRIVING = "being taken in"

    # of a partition
    PAUSED = "paused"
    READING_PARKED = "reading parked keys"
    READING_STATE = "reading its state"
    DRAINING = "draining"
    MAP_CUT = "map cut"
    HELD = "held"
    INTERJECTION = "interjection"
    PARKED = "parked"
    NOTHING_TO_DO = "nothing to do"

    # of the consumer
    NOT_RUNNING = "not running"
    NOT_ASSIGNED = "not assigned"
    SOURCE_TROUBLE = "source trouble"
    DESTINATION_TROUBLE = "destination trouble"
    WINDOW_FULL = "window full"


REMEDIES = {
    WaitReason.RUNNING: "until the handler returns, or is cancelled by its timeout",
    WaitReason.DEAF: "until the handler ends; it ignores its cancellation",
    WaitReason.BACKING_OFF: "until the backoff ends",
    WaitReason.READY: "until a worker is free",
    WaitReason.QUEUED_BEHIND: "until that message is settled",
    WaitReason.BLOCKED: "until unblock()",
    WaitReason.MANUAL: "until message.settle(...)",
    WaitReason.JOB: "until its processor, or its batch, has ended and its finaliser has run",
    WaitReason.NO_ROOM: "until earlier jobs have ended; its partition begins no later event meanwhile",
    WaitReason.IN_BATCHER: "until its rows are written",
    WaitReason.DEAD_LETTER: "until the dead letters have accepted it",
    WaitReason.PARKING: "until the park store has accepted it",
    WaitReason.GIVING_BACK: "until the source has taken it back",
    WaitReason.FORMING: "until the batch is full or max_wait has passed",
    WaitReason.ARRIVING: "until it is in its lane",
    WaitReason.PAUSED: "until resume()",
    WaitReason.READING_PARKED: "until the park store has answered",
    WaitReason.READING_STATE: "until all of it is read",
    WaitReason.DRAINING: "delivered again to the next owner",
    WaitReason.MAP_CUT: "until the first unfinished messages are settled",
    WaitReason.HELD: "until there is room; no later event begins meanwhile",
    WaitReason.INTERJECTION: "until it is complete",
    WaitReason.PARKED: "until unpark()",
    WaitReason.NOTHING_TO_DO: "until new records arrive",
    WaitReason.NOT_RUNNING: "until run()",
    WaitReason.NOT_ASSIGNED: "until the source assigns partitions",
    WaitReason.SOURCE_TROUBLE: "until the source can deliver again",
    WaitReason.DESTINATION_TROUBLE: "until the destination accepts writes again",
    WaitReason.WINDOW_FULL: "until messages are settled",
}
"""The condition that ends each wait."""


@dataclass(frozen=True, slots=True)
class WaitCause:
    """One reason for a wait, with its details."""

    reason: WaitReason
    detail: str = ""
    seconds: float | None = None
    """Minimum duration of the wait so far; sampled. For a backoff, and for a batch being formed:
    the remaining time.
    """

    @property
    def remedy(self) -> str:
        """The condition that ends the wait."""
        return REMEDIES[self.reason]

    @property
    def told(self) -> str:
        """The reason with its details."""
        return f"{self.reason} {self.detail}".strip()

    def __str__(self) -> str:
        return f"{self.told}, {self.remedy}"
