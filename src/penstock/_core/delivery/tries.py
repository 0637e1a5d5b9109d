"""The failed tries of a delivery's items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..clock import Clock


@dataclass(frozen=True, slots=True)
class Tries:
    """The failed tries of one item. Times are the clock's monotonic seconds."""

    count: int
    first_at: float
    last_at: float


def count_try(tries: dict[int, Tries], indices: Sequence[int], clock: Clock) -> None:
    """Count a try that has ended now for each of these items."""
    if not indices:
        return
    now = clock.now()
    first = Tries(1, now, now)
    for index in indices:
        before = tries.get(index)
        tries[index] = first if before is None else Tries(before.count + 1, before.first_at, now)
