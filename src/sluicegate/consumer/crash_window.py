"""The effect of a stored map on a claim: records that were skipped, and records that ran again.

The map lists settled records beyond the stored position. After a crash or a rebalance they are
skipped, and only the other records up to the end of the map run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._core.source import TopicPartition
    from .claim import Claim


@dataclass(frozen=True, slots=True)
class CrashWindow:
    """The records of one claim from its stored position to the end of its map."""

    partition: TopicPartition
    start: int
    """The stored position."""
    end: int
    """The offset after the last record of the map."""
    skipped: int
    """Records that were already settled. A span that the source passed over counts by its offsets.
    """
    replayed: int
    """Records that run, possibly for the second time."""

    def __str__(self) -> str:
        return (
            f"{self.partition} continued at {self.start}: up to {self.end}, {self.skipped} records "
            f"were settled before and skipped, {self.replayed} run again"
        )


class CrashWindows:
    """The crash windows of a consumer's claims, each reported once, and their totals."""

    def __init__(self) -> None:
        self._reported: set[Claim] = set()
        self._past = Deliveries()

    def passed(self, claims: Iterable[Claim]) -> list[CrashWindow]:
        """Return the windows that have been passed and were not returned before."""
        new = [
            claim
            for claim in claims
            if claim.replay.end > claim.start.offset
            and claim.tracker.next_offset >= claim.replay.end
            and claim not in self._reported
        ]
        self._reported.update(new)
        return [
            CrashWindow(
                claim.partition,
                claim.start.offset,
                claim.replay.end,
                claim.replay.skipped + claim.replay.passed,
                claim.replay.replayed,
            )
            for claim in new
        ]

    def ended(self, claim: Claim) -> None:
        """Keep the counts of a claim that has ended."""
        self._reported.discard(claim)
        self._past = _with(self._past, claim)

    def total(self, claims: Iterable[Claim]) -> Deliveries:
        """Return the totals over these claims and all ended claims."""
        total = self._past
        for claim in claims:
            total = _with(total, claim)
        return total


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Records as delivered by the source, and why some did not run or ran again."""

    received: int = 0
    """Records delivered by the source, including those of a stored map that it did not pass over.
    """
    redelivered: int = 0
    """Records delivered twice within one claim; the second delivery was ignored."""
    skipped: int = 0
    """Records settled earlier according to the stored map. A long span that the source passes over
    without delivering it counts by its offsets, including offsets without a record.
    """
    replayed: int = 0
    """Records in the range of a stored map that were not settled: they run, possibly again."""


def _with(total: Deliveries, claim: Claim) -> Deliveries:
    return Deliveries(
        total.received + claim.tracker.next_index,
        total.redelivered + claim.redelivered,
        total.skipped + claim.replay.skipped + claim.replay.passed,
        total.replayed + claim.replay.replayed,
    )
