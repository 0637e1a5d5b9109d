"""What a claim made of its stored map: records that were skipped, and records that ran again.

The map lists records behind the stored position that were settled. After a crash or a rebalance
they are skipped, and only the others up to the end of the map run again.
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
    """Records that had been settled. A span that the source passed counts by its offsets."""
    replayed: int
    """Records that run, perhaps for the second time."""

    def __str__(self) -> str:
        return (
            f"{self.partition} continued at {self.start}: up to {self.end}, {self.skipped} records "
            f"were settled before and skipped, {self.replayed} run again"
        )


class CrashWindows:
    """The crash windows of a consumer's claims, each reported once, and their sums."""

    def __init__(self) -> None:
        self._reported: set[Claim] = set()
        self._past = Deliveries()

    def passed(self, claims: Iterable[Claim]) -> list[CrashWindow]:
        """The windows that have been passed and were not returned before."""
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
        """The sums over these claims and all that have ended."""
        total = self._past
        for claim in claims:
            total = _with(total, claim)
        return total


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Records as the source delivered them, and why some did not run, or run again."""

    received: int = 0
    """Delivered by the source, those of a stored map included, unless it passed them."""
    redelivered: int = 0
    """Delivered twice in one claim; the second delivery was ignored."""
    skipped: int = 0
    """Settled before, by the stored map. A long span that the source passes without delivering it
    counts by its offsets, those without a record included.
    """
    replayed: int = 0
    """Among the records of a stored map, and not settled: they run, perhaps again."""


def _with(total: Deliveries, claim: Claim) -> Deliveries:
    return Deliveries(
        total.received + claim.tracker.next_index,
        total.redelivered + claim.redelivered,
        total.skipped + claim.replay.skipped + claim.replay.passed,
        total.replayed + claim.replay.replayed,
    )
