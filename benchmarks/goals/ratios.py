"""The speed relative to a peer, by either clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..stopwatch import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..harness import Case
    from .judging import Found, Measure


def clocks(_: Found) -> Sequence[tuple[str, str]]:
    """Return a column for each of the two times."""
    return [(clock, f"{clock} time") for clock in Clock]


def as_fast(case: Case, name: str, peer: str) -> Measure:
    """Compute the speed of a contender relative to `peer`, round by round."""

    def measure(found: Found, clock: str) -> list[float]:
        rounds = found[case.name].by(Clock(clock))
        return [theirs / own for own, theirs in zip(rounds[name], rounds[peer], strict=True)]

    return measure
