"""The sizing worksheet: derives limits from measurements. Pure.

1. The knee is the smallest batch with nine tenths of the best throughput: larger batches gain
   little. If it is the largest batch measured, throughput still rises, and the knee is unknown.
2. `max_items` stays a fifth below the knee, or below the largest batch measured.
3. `max_delay` is the latency budget. A batch that fills sooner is sealed by size; one that fills
   later must not wait longer.
4. `workers` is the number of concurrent writes that the peak needs.
5. `max_pending_items` covers some seconds of peak, plus the open batch and the batches in flight.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...batcher.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

NEARLY_BEST = 0.9
MARGIN = 0.8
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured writes for one batch size and one number of workers."""

    size: int
    seconds: tuple[float, ...]
    """The duration of each write."""
    workers: int = 1

    @property
    def write(self) -> float:
        """The median duration of a write."""
        return statistics.median(self.seconds)

    @property
    def per_second(self) -> float:
        """Items per second, with this number of workers."""
        return self.workers * self.size / max(self.write, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements of the batcher. Rates in items per second, times in seconds."""

    rate: float | None = None
    """The usual rate."""
    peak: float | None = None
    """The highest rate; default `rate`."""
    latency: float | None = None
    """Longest time that an item may wait in the open batch."""
    absorb: float = 2.0
    """Longest pause of the destination that the ledger absorbs at the peak."""

    @property
    def worst(self) -> float | None:
        """The peak, or the usual rate."""
        return self.rate if self.peak is None else self.peak


def nearly_best(measured: Sequence[Measured]) -> Measured:
    """The smallest batch with nine tenths of the best throughput: the knee, unless it `is_last`."""
    best = max(one.per_second for one in measured)
    return min(
        (one for one in measured if one.per_second >= NEARLY_BEST * best), key=lambda one: one.size
    )


def is_last(at: Measured, measured: Sequence[Measured]) -> bool:
    """Return whether no larger size was measured, so that throughput may still rise."""
    return at.size == max(one.size for one in measured)


def headline(measured: Sequence[Measured], at: Measured, refused: int | None) -> str:
    """Name the knee, or why it is not known; `refused` is the size whose write failed."""
    if not is_last(at, measured):
        return f"the knee is at {at.size:,} items"
    if refused is not None:
        return f"no knee: {at.size:,} items are the largest size that was accepted"
    if len(measured) == 1:
        return f"no knee: only {at.size:,} items were measured: try more sizes with --sizes"
    larger = f"{at.size},{3 * at.size},{10 * at.size}"
    return f"no knee: still rising at {at.size:,} items: try larger sizes with --sizes {larger}"


def with_margin(size: int) -> int:
    """Return four fifths of `size`, at least 1."""
    return max(1, int(size * MARGIN))


def worksheet(at: Measured, needs: Needs, workers: int | None = None) -> Limits:
    """Derive limits from the knee.

    Without measured `workers`, use as many as handle the peak if each is as fast as one alone.
    """
    max_items = with_margin(at.size)
    peak = needs.worst
    delay = Limits().max_delay if needs.latency is None else needs.latency
    if peak is None:
        return Limits(max_items=max_items, max_delay=delay, workers=workers or 1)
    needed = workers or max(1, math.ceil(peak * at.write / max_items))
    return Limits(
        max_items=max_items,
        max_delay=delay,
        workers=needed,
        max_pending_items=math.ceil(peak * needs.absorb) + max_items * (1 + needed),
    )


def fewest_workers(measured: Sequence[Measured], peak: float | None) -> Measured:
    """Find the fewest workers that handle the peak, or else nine tenths of the best throughput."""
    carrying = [one for one in measured if peak is not None and one.per_second >= peak]
    if carrying:
        return min(carrying, key=lambda one: one.workers)
    best = max(one.per_second for one in measured)
    return min(
        (one for one in measured if one.per_second >= NEARLY_BEST * best),
        key=lambda one: one.workers,
    )


def memory(limits: Limits, item_bytes: int) -> int:
    """Bytes of a full ledger: all items in the open batch, sealed, in flight or backing off."""
    return limits.ledger_items * item_bytes


def amount_of(memory: int) -> str:
    """Format bytes in a suitable unit."""
    amount, unit = float(memory), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}"


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


def remarks(
    measured: Sequence[Measured], at: Measured, limits: Limits, needs: Needs, *, workers_known: bool
) -> list[str]:
    """List remarks on the limits."""
    told: list[str] = []
    if is_last(at, measured):
        told.append(f"the limits are for {at.size:,} items, the largest size measured")
    if needs.rate is not None:
        fills = limits.max_items / needs.rate
        by = (
            "size"
            if fills <= limits.delay
            else f"time, with about {max(1, round(needs.rate * limits.delay)):,} items"
        )
        told.append(
            f"at {needs.rate:,.0f} items a second a batch is full after {fills:.3g} s, so most "
            f"are sealed by {by}"
        )
    if limits.workers > 1:
        told.append("more than one worker gives up order, unless the batcher has a key")
    if limits.workers > 1 and not workers_known:
        told.append(
            f"not measured: whether {limits.workers} concurrent writes are as fast as one alone; "
            f"measure it with --workers 1,{limits.workers}"
        )
    usual = _usual(measured, at, limits, needs)
    if needs.latency is not None and usual.write > needs.latency:
        told.append(
            f"a write of {usual.size:,} items alone takes {usual.write:.3g} s, longer than an "
            "item may wait before it"
        )
    return told


def _usual(measured: Sequence[Measured], at: Measured, limits: Limits, needs: Needs) -> Measured:
    """Find the measurement of the usual batch: the knee, or smaller if time seals it."""
    items = (
        limits.max_items if needs.rate is None else min(limits.max_items, needs.rate * limits.delay)
    )
    return min((one for one in measured if one.size >= items), key=lambda one: one.size, default=at)
