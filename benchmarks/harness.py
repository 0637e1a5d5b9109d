"""How a case is measured.

1. Contenders of a case take turns: A B C A B C ..., so that whatever else the machine does hits all of them alike.
2. One round before the first is not counted. The garbage is collected before each turn, and the collector stays on during it, as it
   does in a program.
3. A turn returns the seconds of the part that counts; setting up and checking that every item arrived stay outside.
4. A ratio is taken within each round, between neighbours in time, and the median of those ratios is quoted; the medians of two columns
   divided by each other may differ from it.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Turn = Callable[[], float]


class CaseUnavailableError(Exception):
    """A case cannot run here: something that it needs is not installed."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What a case's table counts in."""

    title: str
    per_second: float
    per_item: bool = True
    """Whether the seconds of a turn are divided by the items."""


NS_PER_ITEM = Unit("ns per item", 1e9)
MS = Unit("ms", 1e3, per_item=False)


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do it. `turn` does it once and returns seconds."""

    name: str
    turn: Turn
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """What we want to see: `name` at least `factor` times as fast as `peer`."""

    name: str
    peer: str
    factor: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What we want to see: no round of `name` above `most`, in the case's unit."""

    name: str
    most: float


@dataclass(frozen=True, slots=True)
class Case:
    """Something worth measuring. `prepare(items)` opens what the contenders need and gives them."""

    name: str
    title: str
    prepare: Callable[[int], AbstractContextManager[Sequence[Contender]]]
    items: int
    quick_items: int
    unit: Unit
    peers: Sequence[str]
    """The contenders that the others are compared with."""
    targets: Sequence[Target | Ceiling]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and how far the rounds lie apart."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what came of it."""

    text: str
    met: bool


@dataclass(frozen=True, slots=True)
class Results:
    """Every round of every contender, in the case's unit."""

    case: Case
    items: int
    rounds: int
    figures: Mapping[str, Sequence[float]]
    ours: frozenset[str]

    def spread(self, name: str) -> Spread:
        """The median of a contender's rounds, in the case's unit."""
        return _spread(self.figures[name])

    def ratio(self, name: str, peer: str) -> Spread:
        """How many times as fast as `peer` a contender was."""
        pairs = zip(self.figures[name], self.figures[peer], strict=True)
        return _spread([theirs / own for own, theirs in pairs])

    def verdicts(self) -> list[Verdict]:
        """The case's targets, each with what was measured."""
        return [self._verdict(target) for target in self.case.targets]

    def _verdict(self, target: Target | Ceiling) -> Verdict:
        if isinstance(target, Target):
            ratio = self.ratio(target.name, target.peer)
            text = f"{target.name} at least {target.factor:g} x {target.peer}: {ratio.median:.2f} x"
            return Verdict(text, ratio.median >= target.factor)
        most = self.spread(target.name).most
        text = f"{target.name} never above {target.most:g} {self.case.unit.title}: at most {most:.1f}"
        return Verdict(text, most <= target.most)


def measure(case: Case, *, items: int, rounds: int) -> Results:
    """Run a case: one warm-up, then `rounds` rounds of every contender in turn. Raises `CaseUnavailableError` where it cannot run."""
    with case.prepare(items) as contenders:
        seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        for number in range(rounds + 1):
            for contender in contenders:
                gc.collect()
                took = contender.turn()
                if number:
                    seconds[contender.name].append(took)
        ours = frozenset(contender.name for contender in contenders if contender.ours)
    scale = case.unit.per_second / (items if case.unit.per_item else 1)
    figures = {name: [took * scale for took in all_of_it] for name, all_of_it in seconds.items()}
    return Results(case=case, items=items, rounds=rounds, figures=figures, ours=ours)


def _spread(figures: Sequence[float]) -> Spread:
    return Spread(statistics.median(figures), min(figures), max(figures))
