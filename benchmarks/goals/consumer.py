"""The goals for the consumer, and the measured figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cases import consumer
from ..consuming import BATCHES, NO_OP, OURS, RECIPE, YIELDING
from ..consuming import name_of as work_of
from ..harness import name_of
from .judging import Goal, GoalTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judging import Found, Measure


def as_fast(ours: str, peer: str) -> Measure:
    """Compute the speed relative to `peer` with an interpreter, round by round."""

    def measure(found: Found, line: str) -> list[float]:
        rounds = found[consumer.CASE.name].figures
        pairs = zip(rounds[name_of(line, ours)], rounds[name_of(line, peer)], strict=True)
        return [theirs / own for own, theirs in pairs]

    return measure


def _interpreters(found: Found) -> Sequence[tuple[str, str]]:
    return [(line, line) for line in found[consumer.CASE.name].lines]


TABLE = GoalTable(
    "consumer",
    frozenset({consumer.CASE.name}),
    (
        Goal(
            "no-op handlers, against a task per message and a lock per key",
            as_fast(work_of(OURS, NO_OP), work_of(RECIPE, NO_OP)),
            6.0,
            7.0,
            at_least=True,
        ),
        Goal(
            "handlers that yield once, against a task per message and a lock per key",
            as_fast(work_of(OURS, YIELDING), work_of(RECIPE, YIELDING)),
            2.2,
            at_least=True,
        ),
        Goal(
            "batches of 100, per record, against no-op handlers of single ones",
            as_fast(work_of(OURS, BATCHES), work_of(OURS, NO_OP)),
            1.0,
            1.5,
            at_least=True,
        ),
    ),
    _interpreters,
)
