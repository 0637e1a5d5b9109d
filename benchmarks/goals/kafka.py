"""The goals for Kafka as a source, and the measured figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cases.kafka import source
from ..harness import name_of
from ..kafka.workloads import BARE, OURS, RECIPE
from .judging import Goal, GoalTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .judging import Found, Measure


def times(slower: str, faster: str) -> Measure:
    """Compute the processor time of another way relative to `faster`, round by round."""

    def measure(found: Found, line: str) -> list[float]:
        rounds = found[source.CASE.name].figures
        pairs = zip(rounds[name_of(line, slower)], rounds[name_of(line, faster)], strict=True)
        return [more / less for more, less in pairs]

    return measure


def _interpreters(found: Found) -> Sequence[tuple[str, str]]:
    return [(line, line) for line in found[source.CASE.name].lines]


TABLE = GoalTable(
    "kafka",
    frozenset({source.CASE.name}),
    (
        Goal(
            "a record, against a task per message and a lock per key",
            times(RECIPE, OURS),
            2.5,
            at_least=True,
        ),
        Goal("a record, against a bare `getmany` loop", times(OURS, BARE), 1.6, 1.4),
    ),
    _interpreters,
)
