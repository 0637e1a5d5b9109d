"""The pages and their plots: the text is written by hand, and this module writes the figures
between two marks. All figures are in `benchmarks/README.md`; the page for users tells some of the
goals' figures, written by the same run.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from . import plots
from .goals.users import told
from .tables import for_markdown, ruled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .goals.judging import GoalTable
    from .harness import Results

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
PAGE = Path("benchmarks/README.md")
FOR_USERS = Path("docs/explanation/benchmarks.md")
PLOTS = Path("benchmarks/plots")
SHOWN = Path("docs/assets/benchmarks")
COMPARISONS = Path("docs/explanation/comparisons.md")
COMPARED = frozenset({"movers", "movers-killed"})
"""The cases whose conclusions are also on the page of comparisons."""
FOR_USERS_TOO = frozenset({"accept", "kafka-postgres-parts", "postgres", "spark"})
"""The cases whose plots are on the page for users."""


def write_page(results: Results, machine: str, root: Path = ROOT) -> Path:
    """Replace a case's figures in the page. Raises `LookupError` if the page has no marks for the
    case.
    """
    if results.case.name in COMPARED:
        notes = "\n".join(f"- {note}" for note in results.case.notes(results))
        write_between_marks(results.case.name, f"\n{notes}\n\n", root, COMPARISONS)
    return write_between_marks(results.case.name, _figures(results, machine), root)


def write_goals(
    table: GoalTable, found: Mapping[str, Results], machine: str, root: Path = ROOT
) -> Path:
    """Replace a table of goals, and what the page for users tells of it."""
    rounds = min(results.rounds for results in found.values())
    rows = "\n".join(ruled(table.rows(found)))
    for marks, sentence in told(table, found).items():
        write_between_marks(marks, f"\n{sentence}\n\n", root, FOR_USERS)
    return write_between_marks(table.marks, f"\n{machine}; {rounds} rounds.\n\n{rows}\n\n", root)


def write_between_marks(name: str, figures: str, root: Path = ROOT, page: Path = PAGE) -> Path:
    """Replace the text between the marks of `name`. Raises `LookupError` without marks."""
    path = root / page
    marks = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
    text, count = marks.subn(
        lambda match: match[1] + "\n".join(map(_wrapped, figures.split("\n"))) + match[2],
        path.read_text(),
    )
    if count != 1:
        raise LookupError(
            f"{page} must hold the marks '<!-- figures: {name} -->' and '<!-- end: {name} -->' "
            f"once, not {count} times"
        )
    path.write_text(text)
    return path


def _wrapped(line: str) -> str:
    """Wrap a line to the page's width, unless it is a row of a table or a picture."""
    if line.startswith(("|", "![")):
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
    libraries = ", ".join([machine, *results.libraries])
    figures = f"\n{libraries}; {amount}.\n\n{for_markdown(results)}\n\n"
    picture = f"![{case.title}]({_from_page(case.name)})"
    return f"{figures}{picture}\n\n" if case.is_drawn else figures


def place_of(name: str) -> Path:
    """Return where the plot of a case is."""
    return (SHOWN if name in FOR_USERS_TOO else PLOTS) / f"{name}.svg"


def _from_page(name: str) -> str:
    return Path(os.path.relpath(place_of(name), PAGE.parent)).as_posix()


def write_plot(results: Results, root: Path = ROOT) -> Path:
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
        elif results.case.is_stacked:
            plots.stacks(axes, results)
        elif all(isinstance(at, int) for at in results.points):
            plots.curves(axes, results)
        else:
            plots.groups(axes, results)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(results.case.title, loc="left")
        target = root / place_of(results.case.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    target.write_text("\n".join(line.rstrip() for line in target.read_text().splitlines()) + "\n")
    return target


def _height(results: Results) -> float:
    if results.case.is_stacked:
        return 1.6 + 0.5 * len(results.points)
    if results.case.along is not None and all(isinstance(at, int) for at in results.points):
        return 4.2
    groups = 0.0 if results.case.along is None else 0.2 * len(results.points)
    return 1.1 + groups + (0.36 if results.case.along is None else 0.24) * len(results.figures)
