"""The goals for processor time, and what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .cases.work import CASES, is_before, line_of
from .harness import Results, Spread, name_of, spread_of
from .workloads import (
    ADD,
    BARE,
    DECORATED,
    FIVE_TENANTS,
    GATHER,
    IMPORT,
    MANY_KEYS,
    RETRIES,
    SIZES,
    SUBMIT,
    add_of,
    skeleton_of,
)

NEEDS = frozenset(case.name for case in CASES)
"""The cases whose figures the goals are judged by."""

Figures = Mapping[str, Sequence[float]]
"""Rounds by contender."""
Measure = Callable[[Figures, str], list[float]]
"""The rounds of what a goal is about, under the interpreter of that version."""


@dataclass(frozen=True, slots=True)
class Goal:
    """At most (or at least) `goal`, and what we would like, `ambitious`."""

    work: str
    measure: Measure
    goal: float
    ambitious: float
    unit: str = " x"
    at_least: bool = False

    def reaches(self, figure: float, limit: float) -> bool:
        """Whether a figure is as good as `limit`."""
        return figure >= limit if self.at_least else figure <= limit

    def judged(self, figures: Figures, version: str) -> Judged | None:
        """What came of it under an interpreter; `None` where it was not measured."""
        try:
            spread = spread_of(self.measure(figures, version))
        except KeyError:
            return None
        return Judged(
            spread,
            met=self.reaches(spread.median, self.goal),
            ambitious=self.reaches(spread.median, self.ambitious),
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """The figure of a goal, judged by its median."""

    spread: Spread
    met: bool
    ambitious: bool


def times(work: str, peer: str, scale: float = 1.0) -> Measure:
    """How many times as long as `peer` the work takes, round by round."""

    def measure(figures: Figures, version: str) -> list[float]:
        line = line_of(version)
        pairs = zip(figures[name_of(line, work)], figures[name_of(line, peer)], strict=True)
        return [scale * own / other for own, other in pairs]

    return measure


def faster(work: str) -> Measure:
    """How many times as fast as before the work is done, round by round."""

    def measure(figures: Figures, version: str) -> list[float]:
        now = figures[name_of(line_of(version), work)]
        before = figures[name_of(line_of(version, before=True), work)]
        return [old / new for old, new in zip(before, now, strict=True)]

    return measure


def added(work: str, base: str) -> Measure:
    """How much more than `base` the work takes, round by round, in the case's unit."""

    def measure(figures: Figures, version: str) -> list[float]:
        line = line_of(version)
        pairs = zip(figures[name_of(line, work)], figures[name_of(line, base)], strict=True)
        return [own - other for own, other in pairs]

    return measure


PLAIN = 250.0
"""Nanoseconds of a plain `add` on the machine that the goal of keys is for."""

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
    Goal("`submit`, batches of 500, against before", faster(SUBMIT), 1.7, 2.0, at_least=True),
    Goal("the same, receipts kept and gathered", faster(GATHER), 1.7, 2.0, at_least=True),
    Goal("five tenants, against plain `add`", times(FIVE_TENANTS, ADD), 2.5, 2.0),
    Goal(
        f"1,000 keys, per item, where plain `add` takes {PLAIN:g} ns",
        times(MANY_KEYS, ADD, scale=PLAIN),
        400,
        350,
        " ns",
    ),
    Goal("four decorators, added per item", added(DECORATED, ADD), 80, 60, " ns"),
    Goal(
        "`Retry`, 500 items failing twice, against before", faster(RETRIES), 3.5, 6, at_least=True
    ),
    Goal("`import penstock`, above a bare interpreter", added(IMPORT, BARE), 170, 120, " ms"),
)


def table(found: Sequence[Results], goals: Sequence[Goal] = GOALS) -> list[list[str]]:
    """A row for each goal, and a column for each interpreter."""
    figures = {name: rounds for results in found for name, rounds in results.figures.items()}
    lines = list(dict.fromkeys(line for results in found for line in results.lines))
    versions = [line.removeprefix("Python ") for line in lines if not is_before(line)]
    head = ["work", "goal", "ambitious", *(line_of(version) for version in versions)]
    return [head, *(_row(goal, figures, versions) for goal in goals)]


def _row(goal: Goal, figures: Figures, versions: Sequence[str]) -> list[str]:
    way = "at least" if goal.at_least else "at most"
    return [
        goal.work,
        f"{way} {goal.goal:g}{goal.unit}",
        f"{goal.ambitious:g}{goal.unit}",
        *(_cell(goal, goal.judged(figures, version)) for version in versions),
    ]


def _cell(goal: Goal, judged: Judged | None) -> str:
    if judged is None:
        return "not measured"
    spread = judged.spread
    digits = 2 if goal.unit == " x" else 0
    verdict = "**missed**" if not judged.met else "met, ambitious" if judged.ambitious else "met"
    return (
        f"{spread.median:.{digits}f}{goal.unit} "
        f"({spread.least:.{digits}f} to {spread.most:.{digits}f}): {verdict}"
    )
