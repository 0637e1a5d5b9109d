"""The report of a consumer at its end, and the log line about it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.logs import for_log, log_safely

if TYPE_CHECKING:
    from .._core.source import TopicPartition
    from .counts import MessageCounts

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
    """Number of its failed tries."""
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
    """Whether the source came to its end and every message that was not blocked was handled."""

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
