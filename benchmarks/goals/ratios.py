"""How many times as fast as a peer, by either clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..stopwatch import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..harness import Case
    from .judging import Found, Measure


def clocks(_: Found) -> Sequence[tuple[str, str]]:
    """A column for each of the two times."""
    return [(clock, f"{clock} time") for clock in Clock]


def as_fast(case: Case, name: str, peer: str) -> Measure:
    """How many times as fast as `peer` a contender of a case is, round by round."""

    def measure(found: Found, clock: str) -> list[float]:
        rounds = found[case.name].by(Clock(clock))
        return [theirs / own for own, theirs in zip(rounds[name], rounds[peer], strict=True)]

    return measure
