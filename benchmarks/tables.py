"""Results as text: for the terminal, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .harness import name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .harness import Results, Spread


def for_terminal(results: Results) -> str:
    """Aligned columns, then the targets and what follows."""
    tables = ["\n".join(_aligned(rows)) for rows in _tables(results)]
    targets = [
        f"{'met   ' if verdict.met else 'MISSED'}  {verdict.text}" for verdict in results.verdicts()
    ]
    return "\n".join(["\n\n".join(tables), *targets, *results.case.notes(results)])


def for_markdown(results: Results) -> str:
    """The tables, then the targets and what follows as lists."""
    parts = ["\n".join(_ruled(rows)) for rows in _tables(results)]
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


def _aligned(rows: list[list[str]]) -> list[str]:
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


def _ruled(rows: list[list[str]]) -> list[str]:
    head, *others = rows
    return [_line(head), _line(["---", *("---:" for _ in head[1:])]), *map(_line, others)]


def _tables(results: Results) -> list[list[list[str]]]:
    if results.case.along is None:
        return [_rows(results)]
    return [_figures_along(results), *(_ratios_along(results, peer) for peer in results.case.peers)]


def _figures_along(results: Results) -> list[list[str]]:
    unit = results.case.unit.title
    rows = [[results.case.along or "", *(f"{line}, {unit}" for line in results.lines)]]
    for at in results.points:
        spreads = {
            line: results.spread(name)
            for line in results.lines
            if (name := name_of(line, at)) in results.figures
        }
        rows.append([_point(at), *(_cell(spreads.get(line)) for line in results.lines)])
    return rows


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


def _cell(spread: Spread | None) -> str:
    return (
        ""
        if spread is None
        else f"{_number(spread.median)} ({_number(spread.least)} to {_number(spread.most)})"
    )


def _rows(results: Results) -> list[list[str]]:
    case = results.case
    rate = ["items/s"] if case.unit.per_item else []
    rows = [["", case.unit.title, "least to most", *rate, *(f"x {peer}" for peer in case.peers)]]
    for name in results.figures:
        spread = results.spread(name)
        per_second = [f"{case.unit.per_second / spread.median:,.0f}"] if case.unit.per_item else []
        ratios = ["1" if name == peer else _ratio(results.ratio(name, peer)) for peer in case.peers]
        rows.append(
            [
                name,
                _number(spread.median),
                f"{_number(spread.least)} to {_number(spread.most)}",
                *per_second,
                *ratios,
            ]
        )
    return rows


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"


def _ratio(spread: Spread) -> str:
    digits = 1 if spread.median >= 10 else 2
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f} to {spread.most:.{digits}f})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
