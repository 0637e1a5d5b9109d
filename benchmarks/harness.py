"""The measurement of a case.

1. Contenders of a case take turns: A B C A B C ..., so that other work on the machine affects all
   of them equally.
2. One round before the first is not counted. Garbage is collected before each turn, and the
   collector stays on during it, as in a program.
3. A turn returns the wall and processor seconds of the relevant part (or one amount, depending on
   the case's unit), without the setup and the check that every item arrived. A case is judged by
   one of the two clocks, and also shows the other one.
4. A ratio is computed within each round, between neighbours in time, and the median of these ratios
   is quoted; the quotient of the medians of two columns may differ from it.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .stopwatch import Clock, Took

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Turn = Callable[[], Took | float]
"""The result of a turn; a single number is a time by one clock, or bytes."""


class CaseUnavailableError(Exception):
    """A case cannot run because a requirement is not installed."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a case's table."""

    title: str
    per_second: float
    per_item: bool = True
    """Whether the amount of a turn is divided by the items."""
    of_time: bool = True


NS_PER_ITEM = Unit("ns per item", 1e9)
US_PER_ITEM = Unit("us per item", 1e6)
MS = Unit("ms", 1e3, per_item=False)
MIB = Unit("MiB", 2.0**-20, per_item=False, of_time=False)
BYTES_PER_ITEM = Unit("bytes each", 1.0, of_time=False)
"""For turns that return bytes."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work. `turn` does it once and returns the time or amount."""

    name: str
    turn: Turn
    ours: bool = False
    place: Place | None = None
    """Its place in a case that compares several ways along a dimension, such as batch sizes."""
    items: int | None = None
    """Number of items of a turn, if it differs from the case's number."""
    library: str | None = None
    """Name and version of its library, if that is in an environment of its own."""


@dataclass(frozen=True, slots=True)
class Place:
    """A way, and the point at which it was measured: a number or a word."""

    line: str
    at: int | str


def placed(
    line: str,
    at: int | str,
    turn: Turn,
    *,
    ours: bool = False,
    items: int | None = None,
    library: str | None = None,
) -> Contender:
    """Make a contender of a case that compares ways along a dimension."""
    return Contender(name_of(line, at), turn, ours, Place(line, at), items, library)


def name_of(line: str, at: int | str) -> str:
    """Return the name of such a contender."""
    return f"{line}, {at:,}" if isinstance(at, int) else f"{line}, {at}"


@dataclass(frozen=True, slots=True)
class Target:
    """A target: `name` is at least `factor` times as fast as `peer`."""

    name: str
    peer: str
    factor: float


@dataclass(frozen=True, slots=True)
class AtMost:
    """A target: `name` takes at most `factor` times as long as `peer`."""

    name: str
    peer: str
    factor: float


@dataclass(frozen=True, slots=True)
class Flat:
    """A target: the line `name` takes at every point at most `factor` times as long as at its first
    one, and at least the inverse of that.
    """

    name: str
    factor: float


@dataclass(frozen=True, slots=True)
class Above:
    """A target: no round of `name` is more than `most` above `base`, in the case's unit."""

    name: str
    base: str
    most: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A target: no round of `name` is above `most`, in the case's unit."""

    name: str
    most: float


Aim = Target | AtMost | Flat | Above | Ceiling


def _nothing(_: Results) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Case:
    """A benchmark. `prepare(items)` opens the resources and returns the contenders."""

    name: str
    title: str
    prepare: Callable[[int], AbstractContextManager[Sequence[Contender]]]
    items: int
    quick_items: int
    unit: Unit
    peers: Sequence[str]
    """The contenders (or lines) with which the others are compared."""
    targets: Sequence[Aim] = ()
    turns: int = 1
    """Number of turns of each contender in a round, whose median is the round's figure. Several
    short turns are less disturbed by other work on the machine than a long one.
    """
    by: Clock = Clock.WALL
    """The clock of ratios and targets, if turns return both times."""
    fastest: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Peers that are not contenders: the least of some lines at each point, in each round. They
    have ratios, but neither a column nor a curve.
    """
    along: str | None = None
    """The dimension of the contenders' places. The rows of the table are then the points, and the
    columns the lines.
    """
    is_drawn: bool = True
    """Whether a plot is shown below the table; a hundred bars are less clear than their table."""
    is_stacked: bool = False
    """Whether the lines are parts of a whole, and are drawn in one bar for each point."""
    notes: Callable[[Results], Sequence[str]] = _nothing
    """Computes conclusions from the figures, as sentences below the table."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and the spread of the rounds."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and its result."""

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
    places: Mapping[str, Place] = field(default_factory=dict[str, "Place"])
    beside: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    """The same by the case's other clock, for contenders whose turns return both times."""
    libraries: Sequence[str] = ()
    """The libraries that are in environments of their own, with their versions."""

    @property
    def lines(self) -> list[str]:
        """The ways that are compared along the dimension."""
        return list(dict.fromkeys(place.line for place in self.places.values()))

    @property
    def points(self) -> list[int | str]:
        """The points of the comparison."""
        return list(dict.fromkeys(place.at for place in self.places.values()))

    def by(self, clock: Clock) -> Mapping[str, Sequence[float]]:
        """Return the rounds by this clock, for contenders whose turns return both times."""
        return self.figures if clock is self.case.by else self.beside

    def is_ours(self, line: str) -> bool:
        """Return whether a line belongs to Sluicegate."""
        return any(name in self.ours for name, place in self.places.items() if place.line == line)

    def spread(self, name: str) -> Spread:
        """Return the median of a contender's rounds, in the case's unit."""
        return spread_of(self.figures[name])

    def spread_beside(self, name: str) -> Spread | None:
        """Return the same by the other clock, if known."""
        return spread_of(self.beside[name]) if name in self.beside else None

    def ratio(self, name: str, peer: str) -> Spread:
        """Return the speed of a contender relative to `peer`."""
        pairs = zip(self.figures[name], self.figures[peer], strict=True)
        return spread_of([theirs / own for own, theirs in pairs])

    @property
    def left_out(self) -> frozenset[str]:
        """The peers that were not measured because their library is not installed."""
        known = {*self.figures, *self.lines}
        return frozenset(peer for peer in self.case.peers if peer not in known)

    def verdicts(self) -> list[Verdict]:
        """Return the case's targets with the measured figures, without targets of skipped peers."""
        return [
            self._verdict(target)
            for target in self.case.targets
            if not (isinstance(target, Target | AtMost) and target.peer in self.left_out)
        ]

    def _verdict(self, target: Aim) -> Verdict:
        if isinstance(target, Target):
            ratio = self.ratio(target.name, target.peer)
            text = f"{target.name} at least {target.factor:g} x {target.peer}: {ratio.median:.2f} x"
            return Verdict(text, ratio.median >= target.factor)
        if isinstance(target, AtMost):
            ratio = self.ratio(target.peer, target.name)
            text = (
                f"{target.name} takes at most {target.factor:g} x as long as {target.peer}: "
                f"{ratio.median:.2f} x"
            )
            return Verdict(text, ratio.median <= target.factor)
        if isinstance(target, Flat):
            first, *others = [
                name for name, place in self.places.items() if place.line == target.name
            ]
            medians = [self.ratio(first, other).median for other in others]
            text = (
                f"{target.name} within a factor of {target.factor:g} of {first}: "
                f"{min(medians):.2f} to {max(medians):.2f} x"
            )
            return Verdict(
                text, 1 / target.factor <= min(medians) and max(medians) <= target.factor
            )
        if isinstance(target, Above):
            pairs = zip(self.figures[target.name], self.figures[target.base], strict=True)
            most = max(own - base for own, base in pairs)
            text = (
                f"{target.name} never more than {target.most:g} {self.case.unit.title} "
                f"above {target.base}: at most {most:.1f}"
            )
            return Verdict(text, most <= target.most)
        most = self.spread(target.name).most
        text = (
            f"{target.name} never above {target.most:g} {self.case.unit.title}: at most {most:.1f}"
        )
        return Verdict(text, most <= target.most)


def measure(case: Case, *, items: int, rounds: int) -> Results:
    """Run a case: one warm-up, then `rounds` rounds of every contender in turn. Raises
    `CaseUnavailableError` if it cannot run.
    """
    with case.prepare(items) as contenders:
        turns: dict[str, list[Took | float]] = {contender.name: [] for contender in contenders}
        for number in range(rounds + 1):
            for name, took in _round(contenders, case.turns):
                if number:
                    turns[name].append(took)
        counts = {each.name: each.items or items for each in contenders}
        places = {each.name: each.place for each in contenders if each.place is not None}
        figures = {
            name: [_scaled(took, case, counts[name], case.by) for took in each]
            for name, each in turns.items()
        }
        beside = {
            name: [_scaled(took, case, counts[name], _other(case.by)) for took in each]
            for name, each in turns.items()
            if all(isinstance(took, Took) for took in each)
        }
        return Results(
            case=case,
            items=items,
            rounds=rounds,
            figures=figures | _fastest(case, places, figures),
            ours=frozenset(each.name for each in contenders if each.ours),
            places=places,
            beside=beside | _fastest(case, places, beside),
            libraries=list(dict.fromkeys(each.library for each in contenders if each.library)),
        )


def _other(clock: Clock) -> Clock:
    return Clock.WALL if clock is Clock.PROCESSOR else Clock.PROCESSOR


def _fastest(
    case: Case, places: Mapping[str, Place], figures: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """Compute the case's `fastest` by one clock."""
    points = dict.fromkeys(place.at for place in places.values())
    found: dict[str, list[float]] = {}
    for line, others in case.fastest.items():
        for at in points:
            names = [name_of(other, at) for other in others]
            if rounds := [figures[name] for name in names if name in figures]:
                found[name_of(line, at)] = [min(each) for each in zip(*rounds, strict=True)]
    return found


def _round(contenders: Sequence[Contender], turns: int) -> Iterator[tuple[str, Took | float]]:
    """Take the turns of a round; return each contender's median."""
    took: dict[str, list[Took | float]] = {contender.name: [] for contender in contenders}
    for _ in range(turns):
        for contender in contenders:
            gc.collect()
            took[contender.name].append(contender.turn())
    for name, each in took.items():
        yield name, _median(each)


def _median(turns: Sequence[Took | float]) -> Took | float:
    timed = [turn for turn in turns if isinstance(turn, Took)]
    if timed:
        return Took(
            statistics.median(turn.wall for turn in timed),
            statistics.median(turn.processor for turn in timed),
        )
    return statistics.median(turn for turn in turns if not isinstance(turn, Took))


def _scaled(took: Took | float, case: Case, items: int, clock: Clock) -> float:
    amount = took.by(clock) if isinstance(took, Took) else took
    return amount * case.unit.per_second / (items if case.unit.per_item else 1)


def spread_of(figures: Sequence[float]) -> Spread:
    return Spread(statistics.median(figures), min(figures), max(figures))
