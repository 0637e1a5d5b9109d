"""Results as text: for the terminal, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .harness import Results, Spread


def for_terminal(results: Results) -> str:
    """Aligned columns, then the targets."""
    rows = _rows(results)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]) for row in rows]
    targets = [f"{'met   ' if verdict.met else 'MISSED'}  {verdict.text}" for verdict in results.verdicts()]
    return "\n".join([*lines, *targets])


def for_markdown(results: Results) -> str:
    """A table, then the targets as a list."""
    head, *rows = _rows(results)
    lines = [_line(head), _line(["---", *("---:" for _ in head[1:])]), *map(_line, rows)]
    targets = [f"- {'met' if verdict.met else '**missed**'}: {verdict.text}" for verdict in results.verdicts()]
    return "\n".join([*lines, "", "Targets:", "", *targets])


def _rows(results: Results) -> list[list[str]]:
    case = results.case
    rate = ["items/s"] if case.unit.per_item else []
    rows = [["", case.unit.title, "least to most", *rate, *(f"x {peer}" for peer in case.peers)]]
    for name in results.figures:
        spread = results.spread(name)
        per_second = [f"{case.unit.per_second / spread.median:,.0f}"] if case.unit.per_item else []
        ratios = ["1" if name == peer else _ratio(results.ratio(name, peer)) for peer in case.peers]
        rows.append([name, _number(spread.median), f"{_number(spread.least)} to {_number(spread.most)}", *per_second, *ratios])
    return rows


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"


def _ratio(spread: Spread) -> str:
    digits = 1 if spread.median >= 10 else 2
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f} to {spread.most:.{digits}f})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
