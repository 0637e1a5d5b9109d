"""The sizing worksheet: derives limits from measured writes. Pure.

1. The knee is the smallest batch with nine tenths of the best throughput: larger batches gain
   little. If it is the largest batch measured, throughput still rises, and the knee is unknown.
2. `max_items` stays a fifth below the knee, or below the largest batch measured.
3. `max_delay` is the latency budget. A batch that fills sooner is sealed by size; one that fills
   later must not wait longer.
4. `workers` is the number of concurrent writes that the rate needs, if each is as fast as one
   alone.
5. `max_pending_items` covers two seconds of the rate, plus the open batch and the batches in
   flight.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..batcher.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

NEARLY_BEST = 0.9
MARGIN = 0.8
ABSORB = 2.0
"""Seconds of a pause of the destination that the ledger absorbs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured writes for one batch size."""

    size: int
    seconds: Sequence[float]
    """The duration of each write."""

    @property
    def write(self) -> float:
        """The median duration of a write."""
        return statistics.median(self.seconds)

    @property
    def per_second(self) -> float:
        """Items per second."""
        return self.size / max(self.write, 1e-9)


def nearly_best(measured: Sequence[Measured]) -> Measured:
    """The smallest batch with nine tenths of the best throughput."""
    best = max(one.per_second for one in measured)
    return min(
        (one for one in measured if one.per_second >= NEARLY_BEST * best), key=lambda one: one.size
    )


def headline(measured: Sequence[Measured], at: Measured, refused: int | None) -> str:
    """Name the knee, or why it is not known; `refused` is the size whose write failed."""
    if at.size < max(one.size for one in measured):
        return f"the knee is at {at.size:,} items"
    if refused is not None:
        return f"no knee: {at.size:,} items are the largest size that was accepted"
    larger = f"{at.size},{3 * at.size},{10 * at.size}"
    return f"no knee: still rising at {at.size:,} items: try larger sizes with --sizes {larger}"


def worksheet(at: Measured, *, rate: float | None, latency: float | None) -> Limits:
    """Derive limits from the knee, the peak in items per second and the latency budget."""
    max_items = max(1, int(at.size * MARGIN))
    delay = Limits().max_delay if latency is None else latency
    if rate is None:
        return Limits(max_items=max_items, max_delay=delay)
    workers = max(1, math.ceil(rate * at.write / max_items))
    return Limits(
        max_items=max_items,
        max_delay=delay,
        workers=workers,
        max_pending_items=math.ceil(rate * ABSORB) + max_items * (1 + workers),
    )


def as_code(limits: Limits) -> str:
    """Format the limits as Python code."""
    lines = [
        f"    max_items={limits.max_items:_},",
        f"    max_delay={limits.delay:g},",
        f"    workers={limits.workers},",
    ]
    if limits.max_pending_items is not None:
        lines.append(f"    max_pending_items={limits.max_pending_items:_},")
    return "\n".join(["limits = Limits(", *lines, ")"])
