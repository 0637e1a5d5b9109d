"""Results as text: for the terminal, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .harness import name_of, spread_of
from .stopwatch import Clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .harness import Results, Spread


def for_terminal(results: Results) -> str:
    """Format aligned columns, then the targets and the conclusions."""
    tables = ["\n".join(aligned(rows)) for rows in _tables(results)]
    targets = [
        f"{'met   ' if verdict.met else 'MISSED'}  {verdict.text}" for verdict in results.verdicts()
    ]
    return "\n".join(["\n\n".join(tables), *targets, *results.case.notes(results)])


def for_markdown(results: Results) -> str:
    """Format the tables, then the targets and the conclusions as lists."""
    parts = ["\n".join(ruled(rows)) for rows in _tables(results)]
    targets = [
        f"- {'met' if verdict.met else '**missed**'}: {verdict.text}"
        for verdict in results.verdicts()
    ]
    if targets:
        parts += ["Targets:", "\n".join(targets)]
    notes = [f"- {note}" for note in results.case.notes(results)]
    if notes:
        parts += ["What follows:", "\n".join(notes)]
    return "\n\n".join(parts)


def aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]


def ruled(rows: list[list[str]]) -> list[str]:
    head, *others = rows
    return [_line(head), _line(["---", *("---:" for _ in head[1:])]), *map(_line, others)]


def _tables(results: Results) -> list[list[list[str]]]:
    if results.case.along is None:
        return [_rows(results)]
    tables = [_figures_along(results, results.figures)]
    if results.beside:
        tables[0][0][0] = ", ".join(filter(None, (results.case.along, f"{results.case.by} time")))
        tables.append(_figures_along(results, results.beside))
        tables[1][0][0] = f"{_other(results)} time"
    ratios = [_ratios_along(results, peer) for peer in results.case.peers]
    return tables + [rows for rows in ratios if len(rows) > 1]  # a peer may be skipped


def _figures_along(results: Results, figures: Mapping[str, Sequence[float]]) -> list[list[str]]:
    unit = results.case.unit.title
    lines = [
        line for line in results.lines if any(name_of(line, at) in figures for at in results.points)
    ]
    rows = [[results.case.along or "", *(f"{line}, {unit}" for line in lines)]]
    for at in results.points:
        names = [name_of(line, at) for line in lines]
        cells = [_cell(spread_of(figures[name])) if name in figures else "" for name in names]
        rows.append([_point(at), *cells])
    return rows


def _other(results: Results) -> str:
    """Return the case's other clock."""
    return Clock.WALL if results.case.by is Clock.PROCESSOR else Clock.PROCESSOR


def _ratios_along(results: Results, peer: str) -> list[list[str]]:
    others = [line for line in results.lines if line != peer]
    rows = [[f"x {peer}", *others]]
    for at in results.points:
        base = name_of(peer, at)
        if base in results.figures:
            names = [name_of(line, at) for line in others]
            rows.append(
                [
                    _point(at),
                    *(
                        _ratio(results.ratio(name, base)) if name in results.figures else ""
                        for name in names
                    ),
                ]
            )
    return rows


def _point(at: int | str) -> str:
    return f"{at:,}" if isinstance(at, int) else at


def _cell(spread: Spread) -> str:
    return f"{_number(spread.median)} ({_number(spread.least)} to {_number(spread.most)})"


def _rows(results: Results) -> list[list[str]]:
    case = results.case
    has_rate = case.unit.per_item and case.unit.of_time
    clock = f", {case.by}" if results.beside else ""
    beside = [_other(results)] if results.beside else []
    rate = ["items/s"] if has_rate else []
    head = ["", f"{case.unit.title}{clock}", "least to most", *beside, *rate]
    peers = [peer for peer in case.peers if peer not in results.left_out]
    rows = [[*head, *(f"x {peer}" for peer in peers)]]
    for name in results.figures:
        spread, other = results.spread(name), results.spread_beside(name)
        per_second = [f"{case.unit.per_second / spread.median:,.0f}"] if has_rate else []
        ratios = ["1" if name == peer else _ratio(results.ratio(name, peer)) for peer in peers]
        rows.append(
            [
                name,
                _number(spread.median),
                f"{_number(spread.least)} to {_number(spread.most)}",
                *([_number(other.median) if other else ""] if beside else []),
                *per_second,
                *ratios,
            ]
        )
    return rows


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 or not figure else f"{figure:.1f}"


def _ratio(spread: Spread) -> str:
    digits = 1 if spread.median >= 10 else 2
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f} to {spread.most:.{digits}f})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
