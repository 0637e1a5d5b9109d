"""The goals for processor time, and the measured figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cases.work import CASES, line_of
from ..harness import name_of
from ..workloads import (
    ADD,
    BARE,
    DECORATED,
    FIVE_TENANTS,
    IMPORT,
    MANY_KEYS,
    SIZES,
    add_of,
    skeleton_of,
)
from .judging import Goal, GoalTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .judging import Found, Measure


def times(work: str, peer: str, scale: float = 1.0) -> Measure:
    """Compute the time relative to `peer`, round by round."""

    def measure(found: Found, version: str) -> list[float]:
        figures, line = _figures(found), line_of(version)
        pairs = zip(figures[name_of(line, work)], figures[name_of(line, peer)], strict=True)
        return [scale * own / other for own, other in pairs]

    return measure


def added(work: str, base: str) -> Measure:
    """Compute the time in excess of `base`, round by round, in the case's unit."""

    def measure(found: Found, version: str) -> list[float]:
        figures, line = _figures(found), line_of(version)
        pairs = zip(figures[name_of(line, work)], figures[name_of(line, base)], strict=True)
        return [own - other for own, other in pairs]

    return measure


def interpreters(found: Found) -> Sequence[tuple[str, str]]:
    """Return a column for each interpreter."""
    lines = dict.fromkeys(line for results in found.values() for line in results.lines)
    versions = [line.removeprefix("Python ") for line in lines]
    return [(version, line_of(version)) for version in versions]


def _figures(found: Found) -> Mapping[str, Sequence[float]]:
    return {name: rounds for results in found.values() for name, rounds in results.figures.items()}


PLAIN = 250.0
"""Nanoseconds of a plain `add` on the machine of the goal for keys."""

GOALS = (
    *(
        Goal(
            f"`add`, batches of {size}, against the skeleton",
            times(add_of(size), skeleton_of(size)),
            goal,
            ambitious,
        )
        for size, goal, ambitious in zip(
            SIZES, (2.5, 2.5, 2.0, 1.5), (2.0, 2.0, 1.7, 1.3), strict=True
        )
    ),
    Goal("five tenants, against plain `add`", times(FIVE_TENANTS, ADD), 2.5, 2.0),
    Goal(
        f"1,000 keys, per item, where plain `add` takes {PLAIN:g} ns",
        times(MANY_KEYS, ADD, scale=PLAIN),
        400,
        350,
        " ns",
    ),
    Goal("four decorators, added per item", added(DECORATED, ADD), 80, 60, " ns"),
    Goal("`import sluicegate`, above a bare interpreter", added(IMPORT, BARE), 170, 120, " ms"),
)

TABLE = GoalTable("batcher", frozenset(case.name for case in CASES), GOALS, interpreters)
