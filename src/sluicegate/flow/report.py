"""The result of a pipe: the reports of its source and its batcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._core.source import TopicPartition
    from ..batcher.report import ShutdownReport, Stats
    from ..consumer.operating.report import DrainReport
    from ..consumer.operating.stats import ConsumerStats


@dataclass(frozen=True, slots=True)
class PipeReport:
    """The result of a pipe.

    `complete` means that no write was interrupted, and that the last commit succeeded. Records
    whose rows were not being written are delivered again, and do not affect it.
    """

    source: DrainReport
    """The records: the number settled in each way, and the stored positions."""
    batcher: ShutdownReport[Any]
    """The rows: the number of each outcome."""

    @property
    def complete(self) -> bool:
        """Whether no write was interrupted, and the last commit succeeded.

        Rows that were never sent do not affect it, such as those behind a blocked record.
        """
        return self.source.complete and not self.batcher.unknown

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The stored position of each partition at the end."""
        return self.source.positions

    def __str__(self) -> str:
        return f"{self.source}; {self.batcher}"


@dataclass(frozen=True, slots=True)
class PipeStats:
    """A snapshot of a pipe: its records and its rows."""

    source: ConsumerStats
    batcher: Stats

    def __str__(self) -> str:
        return f"{self.source}; {self.batcher}"
