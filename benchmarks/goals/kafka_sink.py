"""The goals for Kafka as a destination, and the measured figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cases.kafka.sink import CASE
from ..harness import name_of
from ..kafka.producer_workloads import BY_HAND, LINGERING, OURS, SEND
from .judging import Goal, GoalTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judging import Found


def _against(way: str, peer: str, goal: float) -> Goal:
    def measure(found: Found, work: str) -> list[float]:
        rounds = found[CASE.name].figures
        pairs = zip(rounds[name_of(work, way)], rounds[name_of(work, peer)], strict=True)
        return [theirs / own for own, theirs in pairs]

    return Goal(f"{way}, against {peer}", measure, goal, at_least=True)


def _works(found: Found) -> Sequence[tuple[str, str]]:
    return [(work, work) for work in found[CASE.name].lines]


TABLE = GoalTable(
    "kafka-sink",
    frozenset({CASE.name}),
    (
        _against(OURS, SEND, 3.0),
        _against(OURS, LINGERING, 3.0),
        _against(OURS, BY_HAND, 0.9),
    ),
    _works,
)
