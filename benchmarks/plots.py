"""The plots of a case, drawn on given axes: bars, grouped or stacked bars, or curves. A line through a bar's
end or a point shows the spread of its rounds.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

from .harness import name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .harness import Results, Spread

OURS, PEER = "#1f6f8b", "#9aa5ab"
OUR_SHADES = ("#1f6f8b", "#c8553d", "#588157", "#e0a030", "#7b5ea7")
PEER_SHADES = ("#9aa5ab", "#5c666b", "#c4ccd0", "#3a4246")
MARKS = "osD^v<>"


def bars(axes: Any, results: Results) -> None:
    """Draw a bar for each contender."""
    names = list(results.figures)[::-1]
    spreads = [results.spread(name) for name in names]
    _draw_bars(
        axes,
        range(len(names)),
        spreads,
        [OURS if name in results.ours else PEER for name in names],
        height=0.8,
    )
    axes.set_yticks(range(len(names)), names)
    _finish_bars(axes, results, spreads)


def groups(axes: Any, results: Results) -> None:
    """Draw a group of bars for each point, with a bar for each line."""
    lines, points = results.lines, results.points
    colours = _colours(results)
    wide = len(lines) + 0.8
    drawn: list[Spread] = []
    for place, line in enumerate(lines):
        found = [
            (number, name_of(line, at))
            for number, at in enumerate(points)
            if name_of(line, at) in results.figures
        ]
        spreads = [results.spread(name) for _, name in found]
        heights = [-(number * wide + place) for number, _ in found]
        _draw_bars(axes, heights, spreads, [colours[line]] * len(spreads), height=0.85, label=line)
        drawn += spreads
    axes.set_yticks(
        [-(number * wide + (len(lines) - 1) / 2) for number in range(len(points))], points
    )
    axes.legend(frameon=False, loc="best")
    _finish_bars(axes, results, drawn)


def stacks(axes: Any, results: Results) -> None:
    """Draw a bar for each point, with the medians of the lines behind each other."""
    colours = _colours(results)
    ends = [0.0] * len(results.points)
    heights = [-number for number in range(len(results.points))]
    for line in results.lines:
        medians = [results.spread(name_of(line, at)).median for at in results.points]
        drawn = axes.barh(heights, medians, left=ends, color=colours[line], label=line)
        ink = "black" if colours[line] > "#8" else "white"
        axes.bar_label(drawn, [*map(_label, medians)], label_type="center", color=ink)
        ends = [end + median for end, median in zip(ends, medians, strict=True)]
    for height, end in zip(heights, ends, strict=True):
        axes.annotate(_label(end), (end, height), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(heights, results.points)
    axes.set_xlabel(f"{results.case.unit.title}, lower is better")
    axes.margins(x=0.08)
    axes.figure.legend(frameon=False, loc="outside lower center", ncols=len(results.lines))


def curves(axes: Any, results: Results) -> None:
    """Draw a curve for each line over the points, which are numbers; both axes are logarithmic."""
    colours = _colours(results)
    for line, mark in zip(results.lines, MARKS, strict=False):
        points = [at for at in results.points if name_of(line, at) in results.figures]
        spreads = [results.spread(name_of(line, at)) for at in points]
        below, above = _errors(spreads)
        medians = [spread.median for spread in spreads]
        axes.errorbar(
            points,
            medians,
            yerr=(below, above),
            label=line,
            color=colours[line],
            marker=mark,
            markersize=4,
            capsize=2,
            elinewidth=0.8,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(results.case.along)
    axes.set_ylabel(f"{results.case.unit.title}, lower is better")
    axes.grid(which="major", alpha=0.3)
    axes.legend(frameon=False)


def _colours(results: Results) -> dict[str, str]:
    shades = {True: cycle(OUR_SHADES), False: cycle(PEER_SHADES)}
    return {line: next(shades[results.is_ours(line)]) for line in results.lines}


def _draw_bars(
    axes: Any,
    heights: Sequence[float],
    spreads: Sequence[Spread],
    colours: Sequence[str],
    *,
    height: float,
    label: str = "",
) -> None:
    below, above = _errors(spreads)
    medians = [spread.median for spread in spreads]
    axes.barh(
        heights,
        medians,
        height=height,
        color=colours,
        xerr=(below, above),
        error_kw={"elinewidth": 1.0, "capsize": 2.0},
        label=label,
    )
    for place, median, over in zip(heights, medians, above, strict=True):
        axes.annotate(
            _label(median), (median + over, place), (6, 0), textcoords="offset points", va="center"
        )


def _label(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.1f}"


def _finish_bars(axes: Any, results: Results, spreads: Sequence[Spread]) -> None:
    medians = [spread.median for spread in spreads]
    if max(medians) > 20 * min(medians):
        axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel(f"{results.case.unit.title}, lower is better")


def _errors(spreads: Sequence[Spread]) -> tuple[list[float], list[float]]:
    return [spread.median - spread.least for spread in spreads], [
        spread.most - spread.median for spread in spreads
    ]
