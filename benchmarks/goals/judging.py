"""A goal, its judgement, and the table of several goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..harness import Results, Spread, spread_of

Found = Mapping[str, Results]
"""The measured results, by case."""
Measure = Callable[[Found, str], list[float]]
"""Returns the rounds of a goal's quantity for a column of the table. Raises `KeyError` if that was
not measured.
"""


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit (upper or lower) `goal`, and a stricter one, `ambitious`."""

    work: str
    measure: Measure
    goal: float
    ambitious: float | None = None
    unit: str = " x"
    at_least: bool = False

    def reaches(self, figure: float, limit: float | None) -> bool:
        """Return whether a figure is as good as `limit`."""
        if limit is None:
            return False
        return figure >= limit if self.at_least else figure <= limit

    def judged(self, found: Found, column: str) -> Judged | None:
        """Judge the goal in a column; return `None` if it was not measured."""
        try:
            spread = spread_of(self.measure(found, column))
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


@dataclass(frozen=True, slots=True)
class GoalTable:
    """Goals that are judged together. The page has marks with this name for them."""

    name: str
    cases: frozenset[str]
    """The cases with the figures of these goals."""
    goals: Sequence[Goal]
    columns: Callable[[Found], Sequence[tuple[str, str]]]
    """The columns of the judgement, each with its title."""

    @property
    def marks(self) -> str:
        """The name of its marks on the page."""
        return f"goals-{self.name}"

    def rows(self, found: Found) -> list[list[str]]:
        """Return a row for each goal."""
        columns = self.columns(found)
        head = ["work", "goal", "ambitious", *(title for _, title in columns)]
        return [head, *(_row(goal, found, [name for name, _ in columns]) for goal in self.goals)]


def _row(goal: Goal, found: Found, columns: Sequence[str]) -> list[str]:
    way = "at least" if goal.at_least else "at most"
    return [
        goal.work,
        f"{way} {goal.goal:g}{goal.unit}",
        "" if goal.ambitious is None else f"{goal.ambitious:g}{goal.unit}",
        *(_cell(goal, goal.judged(found, column)) for column in columns),
    ]


def _cell(goal: Goal, judged: Judged | None) -> str:
    if judged is None:
        return "not measured"
    verdict = "**missed**" if not judged.met else "met, ambitious" if judged.ambitious else "met"
    return f"{figure_of(goal, judged)}: {verdict}"


def figure_of(goal: Goal, judged: Judged) -> str:
    """Format the median and the spread."""
    spread = judged.spread
    digits = 2 if goal.unit == " x" else 0
    return (
        f"{spread.median:.{digits}f}{goal.unit} "
        f"({spread.least:.{digits}f} to {spread.most:.{digits}f})"
    )
