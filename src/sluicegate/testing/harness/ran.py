"""The result of one run of a harness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..._core.source import TopicPartition
    from ...consumer.operating.report import DrainReport
    from ...consumer.run import MessageCounts
    from ...letters.record import DeadLetterRecord
    from .calls import HandlerCall


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessRun:
    """The results of a harness's messages in one run of its consumer."""

    settled: dict[object, list[object]]
    """Per key, the ids of the messages that were settled in this run, in the order of the ends of
    their last calls. A settled message is not delivered again.
    """
    unsettled: list[object]
    """The ids of the other messages, in the order in which they were sent; the next run handles
    them.
    """
    blocked: list[object]
    """The unsettled messages that could not be handled, and block their keys."""
    calls: list[HandlerCall]
    """The handler's calls, in the order of their starts."""
    dead_letters: list[DeadLetterRecord[Any]]
    """The dead letters that were written, in order; empty if the consumer has its own sink for
    them.
    """
    positions: dict[TopicPartition, int]
    """The stored positions."""
    report: DrainReport
    """The consumer's own report."""

    @property
    def counts(self) -> MessageCounts:
        """The number of messages that were acknowledged, failed, dead-lettered and so on."""
        return self.report.counts
