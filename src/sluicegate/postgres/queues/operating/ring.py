"""Ranges of slots on a ring: the result of a move, and slots without an owner. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...._core import checks
from ...._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SLOTS = 65_536
PART = 256
"""Slots in an automatic range."""


class SlotRange(NamedTuple):
    """Slots from `lo` to `hi`, both included, and their consumer."""

    lo: int
    hi: int
    consumer: str


def checked_range(lo: object, hi: object, consumer: object) -> SlotRange:
    """Raise `ConfigError` unless this is a range of the ring with a consumer."""
    for name, slot in (("lo", lo), ("hi", hi)):
        if checks.count(name, slot, least=0) >= SLOTS:
            raise bad(name, slot, f"must be below {SLOTS}")
    found = SlotRange(int(str(lo)), int(str(hi)), checks.text("consumer", consumer))
    if found.lo > found.hi:
        raise bad("lo", lo, f"must not be above hi={hi}")
    return found


def after_move(ranges: Iterable[SlotRange], moved: SlotRange) -> list[SlotRange]:
    """Return the ranges to assign so that `moved` gets its consumer and no other slot changes.

    Ranges that it overlaps are split, and all their slots are assigned in one call.
    """
    found = [moved]
    for each in ranges:
        if each.hi < moved.lo or moved.hi < each.lo:
            continue
        if each.lo < moved.lo:
            found.append(SlotRange(each.lo, moved.lo - 1, each.consumer))
        if each.hi > moved.hi:
            found.append(SlotRange(moved.hi + 1, each.hi, each.consumer))
    return sorted(found)


def in_parts(ranges: Sequence[SlotRange]) -> list[SlotRange]:
    """Convert ranges to automatic ones, each with the consumer that has most of its slots."""
    found: list[SlotRange] = []
    for lo in range(0, SLOTS, PART):
        hi, shares = lo + PART - 1, dict[str, int]()
        for each in ranges:
            common = min(hi, each.hi) - max(lo, each.lo) + 1
            if common > 0:
                shares[each.consumer] = shares.get(each.consumer, 0) + common
        if shares:
            most = max(shares, key=lambda consumer: (shares[consumer], consumer))
            found.append(SlotRange(lo, hi, most))
    return found


def gaps(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the spans of slots that are covered by none of these spans, which may overlap."""
    first = 0
    for lo, hi in sorted(spans):
        if lo > first:
            yield first, lo - 1
        first = max(first, hi + 1)
    if first < SLOTS:
        yield first, SLOTS - 1
