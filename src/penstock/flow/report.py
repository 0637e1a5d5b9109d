"""How a pipe ended: its source's side and its batcher's, as one report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._core.source import TopicPartition
    from ..batcher.report import ShutdownReport, Stats
    from ..consumer.report import DrainReport
    from ..consumer.stats import ConsumerStats


@dataclass(frozen=True, slots=True)
class PipeReport:
    """How a pipe ended.

    `complete` says that no write was cut off, and that the last commit succeeded. Records whose
    rows no write had are delivered again and need no mention.
    """

    source: DrainReport
    """The records: how many were settled in which way, and the stored positions."""
    batcher: ShutdownReport[Any]
    """The rows: how many ended with which outcome."""

    @property
    def complete(self) -> bool:
        """Whether no write was cut off, and the last commit succeeded."""
        return self.source.complete and self.batcher.complete

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
