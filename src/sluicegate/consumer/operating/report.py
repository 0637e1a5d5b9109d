"""Values for operators: the report of a consumer at its end, and the reasons for a wait."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ..._core.logs import for_log, log_safely

if TYPE_CHECKING:
    from ..._core.source import TopicPartition
    from ..run import MessageCounts


logger = logging.getLogger("sluicegate.consumer")

_DRAINED = (
    "%s: drained in %.3g s: %d messages acknowledged, %d dead-lettered, %d parked, %d given up; "
    "%d unfinished and %d blocked, which are delivered again%s"
)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A message that was running when the drain ended; it is delivered again."""

    partition: TopicPartition
    offset: int
    key: object
    """The key that determines its order."""
    attempt: int
    seconds: float | None = None
    """Minimum running time; sampled. `None` if it started during the drain."""

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset} (key {self.key!r}, attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class BlockedMessage:
    """A message that could not be handled, and that blocks its key until `unblock`."""

    partition: TopicPartition
    offset: int
    key: object
    """The key that determines its order, as passed to `unblock`."""
    attempts: int
    """Number of its failed attempts."""
    error: BaseException
    """The reason why it is blocked."""

    def __str__(self) -> str:
        tries = f"{self.attempts} failed {'try' if self.attempts == 1 else 'tries'}"
        return f"{self.partition}@{self.offset} (key {self.key!r}, {tries}: {for_log(self.error)})"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The end of a consumer's run.

    `complete` states that every started handler ended by itself and that the last commit succeeded.
    Messages that were only queued are delivered again, and are not listed.
    """

    name: str
    counts: MessageCounts
    positions: dict[TopicPartition, int]
    """The stored position of each partition at the end."""
    unfinished: tuple[Unfinished, ...]
    seconds: float
    """Duration of the drain."""
    commit_error: BaseException | None = None
    blocked: tuple[BlockedMessage, ...] = ()
    """Messages that were blocked when the drain began; they are delivered again."""
    at_end: bool = False
    """Whether the source came to its end, every message that was not blocked was handled, and no
    claim was lost on the way with a position that was not stored.
    """

    @property
    def work_remaining(self) -> bool:
        """Whether another run has work to do: this run ended before its source, or left messages
        that are delivered again. Always true for a source without an end.
        """
        return not (self.at_end and self.complete) or bool(self.blocked)

    @property
    def complete(self) -> bool:
        """Whether no handler was cut off and the last commit succeeded."""
        return not self.unfinished and self.commit_error is None

    def __str__(self) -> str:
        text = f"{self.name}: {self.counts.acked} messages acknowledged"
        if self.unfinished:
            which = ", ".join(map(str, self.unfinished[:5]))
            text += f"; {len(self.unfinished)} unfinished and delivered again: {which}"
            text += ", ..." if len(self.unfinished) > 5 else ""
        if self.blocked:
            which = ", ".join(map(str, self.blocked[:5]))
            text += f"; {len(self.blocked)} blocked and delivered again: {which}"
            text += ", ..." if len(self.blocked) > 5 else ""
        if self.commit_error is not None:
            text += f"; the last commit failed ({type(self.commit_error).__name__})"
        return text


def say_drained(report: DrainReport) -> DrainReport:
    """Log the end of a consumer, without keys; return the report."""
    counts, error = report.counts, report.commit_error
    level = logging.INFO if report.complete else logging.WARNING
    told = "" if error is None else f"; the last commit failed ({for_log(error)})"
    given = (counts.acked, counts.dead_lettered, counts.parked, counts.terminated)
    left = (len(report.unfinished), len(report.blocked))
    log_safely(logger, level, _DRAINED, report.name, report.seconds, *given, *left, told)
    return report


class WaitReason(StrEnum):
    """A reason in `Consumer.explain()`, as shown to operators.

    `docs/how-to/troubleshooting.md` explains each.
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
    def reason_text(self) -> str:
        """The reason with its details."""
        return f"{self.reason} {self.detail}".strip()

    def __str__(self) -> str:
        return f"{self.reason_text}, {self.remedy}"
