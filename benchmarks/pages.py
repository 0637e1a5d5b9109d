"""The docs page and its plots: the text is written by hand, and this module writes the figures
between two marks.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from . import plots
from .tables import for_markdown, ruled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .goals.judging import GoalTable
    from .harness import Results

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH = 100
PAGE = Path("explanation/benchmarks.md")
PLOTS = Path("assets/benchmarks")


def write_page(results: Results, machine: str, docs: Path = DOCS) -> Path:
    """Replace a case's figures in the page. Raises `LookupError` if the page has no marks for the
    case.
    """
    return write_between_marks(results.case.name, _figures(results, machine), docs)


def write_goals(
    table: GoalTable, found: Mapping[str, Results], machine: str, docs: Path = DOCS
) -> Path:
    """Replace a table of goals in the page."""
    rounds = min(results.rounds for results in found.values())
    rows = "\n".join(ruled(table.rows(found)))
    return write_between_marks(table.marks, f"\n{machine}; {rounds} rounds.\n\n{rows}\n\n", docs)


def write_between_marks(name: str, figures: str, docs: Path = DOCS) -> Path:
    """Replace the text between the marks of `name`. Raises `LookupError` without marks."""
    page = docs / PAGE
    marks = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
    text, count = marks.subn(
        lambda match: match[1] + "\n".join(map(_wrapped, figures.split("\n"))) + match[2],
        page.read_text(),
    )
    if count != 1:
        raise LookupError(
            f"{PAGE} must hold the marks '<!-- figures: {name} -->' and '<!-- end: {name} -->' "
            f"once, not {count} times"
        )
    page.write_text(text)
    return page


def _wrapped(line: str) -> str:
    """Wrap a line to the page's width, unless it is a row of a table."""
    if line.startswith("|"):
        return line
    hanging = "  " if line.startswith("- ") else ""
    return textwrap.fill(
        line, WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def _figures(results: Results, machine: str) -> str:
    case = results.case
    amount = (
        f"{results.items:,} items, {results.rounds} rounds"
        if case.unit.per_item
        else f"{results.rounds} rounds"
    )
    figures = f"\n{machine}; {amount}.\n\n{for_markdown(results)}\n\n"
    picture = f"![{case.title}](../{PLOTS.as_posix()}/{case.name}.svg)"
    return f"{figures}{picture}\n\n" if case.is_drawn else figures


def write_plot(results: Results, docs: Path = DOCS) -> Path:
    """Draw a case. Equal results give equal files."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(
        {
            "svg.hashsalt": "sluicegate",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 9,
        }
    ):
        figure = Figure(figsize=(8.0, _height(results)), layout="constrained")
        axes = figure.subplots()
        if results.case.along is None:
            plots.bars(axes, results)
        elif all(isinstance(at, int) for at in results.points):
            plots.curves(axes, results)
        else:
            plots.groups(axes, results)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(results.case.title, loc="left")
        target = docs / PLOTS / f"{results.case.name}.svg"
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    target.write_text("\n".join(line.rstrip() for line in target.read_text().splitlines()) + "\n")
    return target


def _height(results: Results) -> float:
    if results.case.along is not None and all(isinstance(at, int) for at in results.points):
        return 4.2
    groups = 0.0 if results.case.along is None else 0.2 * len(results.points)
    return 1.1 + groups + (0.36 if results.case.along is None else 0.24) * len(results.figures)
