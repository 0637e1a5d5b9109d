"""The goals for a pipe from Kafka into PostgreSQL, and the measured figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cases.kafka.pipe import CASE, COPY, HOT_CASE, INSERT, KEYED, PLAIN, SIZES
from ..harness import name_of
from ..stopwatch import Clock
from .judging import Goal, GoalTable
from .ratios import as_fast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judging import Found


def _against(line: str, peer: str, *goals: float, ambitious: float | None = None) -> list[Goal]:
    """Make a goal for each size of a batch."""
    return [
        Goal(
            f"{line}, against {peer}, by {size:,}",
            as_fast(CASE, name_of(line, size), name_of(peer, size)),
            goal,
            ambitious,
            at_least=True,
        )
        for size, goal in zip(SIZES, goals, strict=True)
    ]


def _per_second(found: Found, clock: str) -> list[float]:
    """Compute the records of the hot key per second."""
    rounds = found[HOT_CASE.name].by(Clock(clock))
    return [HOT_CASE.unit.per_second / took for took in rounds[KEYED]]


def _wall(_: Found) -> Sequence[tuple[str, str]]:
    return [(Clock.WALL, "wall time")]


TABLE = GoalTable(
    "pipe",
    frozenset({CASE.name, HOT_CASE.name}),
    (
        *_against(PLAIN, INSERT, 1.5, 1.3),
        *_against(PLAIN, COPY, 1.0, 0.9, ambitious=1.1),
        *_against(KEYED, COPY, 0.92, 0.85),
        Goal(
            "one hot key over writes of 10 ms, in order",
            _per_second,
            5_000,
            25_000,
            " records/s",
            at_least=True,
        ),
    ),
    _wall,
)
