"""The docs page and its plots: the text around the figures is written by hand, the figures between two marks by this module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from .tables import for_markdown

if TYPE_CHECKING:
    from .harness import Results

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = Path("explanation/benchmarks.md")
PLOTS = Path("assets/benchmarks")
OURS, PEER = "#1f6f8b", "#9aa5ab"


def write_page(results: Results, machine: str, docs: Path = DOCS) -> Path:
    """Replace a case's figures in the page. Raises `LookupError` if the page has no marks for the case."""
    page = docs / PAGE
    name = results.case.name
    marks = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
    text, count = marks.subn(lambda match: match[1] + _figures(results, machine) + match[2], page.read_text())
    if count != 1:
        raise LookupError(f"{PAGE} must hold the marks '<!-- figures: {name} -->' and '<!-- end: {name} -->' once, not {count} times")
    page.write_text(text)
    return page


def _figures(results: Results, machine: str) -> str:
    case = results.case
    amount = f"{results.items:,} items, {results.rounds} rounds" if case.unit.per_item else f"{results.rounds} rounds"
    picture = f"![{case.title}](../{PLOTS.as_posix()}/{case.name}.svg)"
    return f"\n{machine}; {amount}.\n\n{for_markdown(results)}\n\n{picture}\n\n"


def write_plot(results: Results, docs: Path = DOCS) -> Path:
    """Draw a case: a bar for each median, a line from the fastest round to the slowest. The same results give the same file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    case = results.case
    names = list(results.figures)[::-1]
    spreads = [results.spread(name) for name in names]
    medians = [spread.median for spread in spreads]
    below = [spread.median - spread.least for spread in spreads]
    above = [spread.most - spread.median for spread in spreads]
    with mpl.rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}):
        figure = Figure(figsize=(8.0, 1.1 + 0.36 * len(names)), layout="constrained")
        axes = figure.subplots()
        colours = [OURS if name in results.ours else PEER for name in names]
        axes.barh(names, medians, color=colours, xerr=(below, above), error_kw={"elinewidth": 1.0, "capsize": 2.0})
        for place, median in enumerate(medians):
            axes.annotate(f"{median:,.0f}", (median + above[place], place), (6, 0), textcoords="offset points", va="center")
        if max(medians) > 20 * min(medians):
            axes.set_xscale("log")
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel(f"{case.unit.title}, less is better")
        axes.set_title(case.title, loc="left")
        target = docs / PLOTS / f"{case.name}.svg"
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    target.write_text("\n".join(line.rstrip() for line in target.read_text().splitlines()) + "\n")
    return target
