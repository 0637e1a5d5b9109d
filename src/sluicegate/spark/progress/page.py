"""The run report as one self-contained page of HTML, without scripts or references.

1. A page shows the counts of a report and, for a stream, Spark's own progress. It shows no more
   rows than the report contains.
2. Text that looks like a secret is masked in settings, rows and messages, since pages are shared.
3. All text may come from tables and users, so the template escapes it.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..._core.extras import need
from .bars import BarLayer, bars, short
from .course import rates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .counts import DeadRow, UnitReport, WriteCounts

COVER = "***"
FIRST_ROWS = 5
"""Number of rows shown for each error type."""
OUTCOMES = ("delivered", "duplicate", "dead_lettered", "failed")
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@'\"]+@")
_NAMED = re.compile(
    r"""(?ix) ( [\w-]* (?: password | passwd | secret | token | api[_-]?key | access[_-]?key | authorization | credential ) [\w-]*
        ['"]? \s* [=:] \s* ) ( '[^']*' | "[^"]*" | (?: (?:bearer|basic) \s+ )? [^\s,;&)}\]]+ )"""
)


def covered(text: object) -> str:
    """Mask the parts of the text that look like secrets."""
    return _NAMED.sub(rf"\1{COVER}", _IN_ADDRESS.sub(f"{COVER}@", str(text)))


def write_page(report: WriteCounts) -> str:
    """Build the page of one write."""
    units = sorted(report.units, key=lambda unit: unit.partition)
    numbers = [str(unit.partition) for unit in units]
    width, speeds = rates([(unit.began_at, unit.marks) for unit in units if unit.began_at])
    pictures = [
        ("Rows per second", "all tasks together, over the run", _speed(width, speeds)),
        (
            "Seconds",
            f"of each {_unit_word(units)}; {_skew([unit.seconds for unit in units])}",
            _of_units(numbers, units, "seconds", " s"),
        ),
        (
            "Rows",
            f"of each {_unit_word(units)}; {_skew([unit.rows for unit in units])}",
            _outcomes_of_units(numbers, units),
        ),
    ]
    if report.retries:
        pictures.append(
            (
                "Tries again",
                f"of each {_unit_word(units)}",
                _of_units(numbers, units, "retries", ""),
            )
        )
    return _rendered(
        title="Write to " + covered(report.settings.get("sink", "a sink")),
        when=_when(min((unit.began_at for unit in units if unit.began_at), default=0.0)),
        told=_told(report),
        share=_share(report),
        pictures=pictures,
        dead=_dead(report.dead_rows),
        dead_elsewhere=report.dead_letters - report.failed,
        settings=[(name, covered(value)) for name, value in report.settings.items()],
        table=[[covered(cell) for cell in line] for line in report.table()],
        table_name=f"{len(units)} {_unit_word(units)}s",
    )


def report_html(report: WriteCounts) -> str:
    """Build a report for a notebook, without a style sheet, which the notebook has."""
    head, *body = report.table()
    colours: dict[str, str] = dict(
        zip(OUTCOMES, ("#2b6cb0", "#7fb2e0", "#d98a1f", "#c0392b"), strict=True)
    )
    bar = "".join(
        f'<div title="{name} {rows:,}" '
        f'style="width:{percent:.2f}%;min-width:2px;background:{colours[name]}"></div>'
        for name, rows, percent in _share(report)
    )
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in body
    )
    dead = "".join(
        f"<li><b>{escape(kind)}</b>, {count:,}: {escape(first[0][1])} "
        f"<code>{escape(first[0][0])}</code></li>"
        for kind, count, first in _dead(report.dead_rows)
    )
    return (
        f"<p>{escape(report.summary)}</p><div "
        f'style="display:flex;height:10px;max-width:40em">{bar}</div>'
        f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"
        + (f"<ul>{dead}</ul>" if dead else "")
    )


def stream_page(
    whole: WriteCounts,
    count: int,
    by_number: Mapping[int, WriteCounts],
    progress: Sequence[Mapping[str, Any]],
) -> str:
    """Build the page of a stream of `count` micro-batches: one row for each in `by_number`, with
    the query's own progress.
    """
    known = {int(each["batchId"]): each for each in progress}
    batches = sorted(by_number.items())
    return _rendered(
        title="Stream to " + covered(whole.settings.get("sink", "a sink")),
        when=_when(min((unit.began_at for unit in whole.units if unit.began_at), default=0.0)),
        told=[("micro-batches", f"{count:,}"), *_told(whole)],
        share=_share(whole),
        pictures=_stream_pictures(batches, known),
        dead=_dead(whole.dead_rows),
        dead_elsewhere=whole.dead_letters - whole.failed,
        settings=[(name, covered(value)) for name, value in whole.settings.items()],
        table=_stream_table(batches, known),
        table_name=f"The last {len(batches)} micro-batches",
    )


def _stream_pictures(
    batches: Sequence[tuple[int, WriteCounts]], known: Mapping[int, Mapping[str, Any]]
) -> list[tuple[str, str, str]]:
    """Return the name, note and picture of each figure."""
    numbers = [str(number) for number, _ in batches]
    reports = [report for _, report in batches]
    elapsed = BarLayer("write", "delivered", [report.elapsed for report in reports])
    pictures = [
        ("Rows", "of each micro-batch", _outcomes(numbers, reports)),
        (
            "Seconds",
            "from the start of the first task to the end of the last one, per micro-batch",
            bars("seconds of each micro-batch", numbers, elapsed, unit=" s"),
        ),
    ]
    if not known:
        return pictures
    spent = [_milliseconds(known.get(number)) / 1000 for number, _ in batches]
    read = [float(known.get(number, {}).get("inputRowsPerSecond") or 0.0) for number, _ in batches]
    return [
        *pictures,
        (
            "Seconds of the query",
            "total time of Spark for each micro-batch",
            _single("query", numbers, spent, " s"),
        ),
        (
            "Input rows per second",
            "as reported by the query",
            _single("input", numbers, read, " rows/s"),
        ),
    ]


def _stream_table(
    batches: Sequence[tuple[int, WriteCounts]], known: Mapping[int, Mapping[str, Any]]
) -> list[list[str]]:
    head = ["batch", "rows", *OUTCOMES, "stopped", "retries", "tasks", "seconds"]
    body = [
        [
            str(number),
            f"{report.rows:,}",
            *(f"{_sum(report, name):,}" for name in OUTCOMES),
            f"{report.stopped:,}",
            f"{report.retries:,}",
            str(len(report.units)),
            f"{report.elapsed:.2f}",
        ]
        for number, report in batches
    ]
    if not known:
        return [head, *body]
    further = [
        [
            f"{known.get(number, {}).get('numInputRows', 0):,}",
            f"{_milliseconds(known.get(number)):,.0f}",
        ]
        for number, _ in batches
    ]
    return [
        [*head, "input rows", "query ms"],
        *([*line, *more] for line, more in zip(body, further, strict=True)),
    ]


def _rendered(**values: object) -> str:
    need("jinja2", "spark", "a page of a run report")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files(__name__.rpartition(".")[0]).joinpath("page.html.jinja").read_text(encoding="utf-8")
    )
    return str(template.render(values))


def _told(report: WriteCounts) -> list[tuple[str, str]]:
    rate = f"{report.rows / report.elapsed:,.0f}" if report.elapsed else "unknown"
    told = [
        ("rows", f"{report.rows:,}"),
        ("delivered", f"{report.delivered:,}"),
        ("dead letters", f"{report.dead_letters:,}"),
        ("tries again", f"{report.retries:,}"),
        ("seconds", f"{report.elapsed:,.1f}"),
        ("rows per second", rate),
    ]
    if report.duplicate:
        told.insert(2, ("duplicate", f"{report.duplicate:,}"))
    if report.stopped:
        told.insert(-3, ("behind a failed row", f"{report.stopped:,}"))
    if report.superseded:
        told.append(("superseded", f"{report.superseded:,}"))
    if report.skipped_units:
        told.append(("committed before", f"{report.skipped_units:,}"))
    return told


def _share(report: WriteCounts) -> list[tuple[str, int, float]]:
    """Return each outcome with its rows and their percentage of all rows."""
    return [
        (name, rows, 100 * rows / report.rows) for name in OUTCOMES if (rows := _sum(report, name))
    ]


def _sum(report: WriteCounts, name: str) -> int:
    return sum(getattr(unit, name) for unit in report.units)


def _dead(rows: Sequence[DeadRow]) -> list[tuple[str, int, list[tuple[str, str]]]]:
    """Return each error type, the number of its rows, and the first rows with their messages."""
    kinds: defaultdict[str, list[DeadRow]] = defaultdict(list)
    for row in rows:
        kinds[row.error_type].append(row)
    by_number = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    return [
        (name, len(found), [(covered(row.row), covered(row.message)) for row in found[:FIRST_ROWS]])
        for name, found in by_number
    ]


def _speed(width: float, speeds: Sequence[float]) -> str:
    labels = [f"{place * width:.3g} s" for place in range(len(speeds))]
    return (
        bars("rows per second over time", labels, BarLayer("rows/s", "delivered", speeds))
        if speeds
        else ""
    )


def _single(name: str, labels: Sequence[str], values: Sequence[float], unit: str) -> str:
    return bars(name, labels, BarLayer(name, "plain", values), unit=unit)


def _of_units(numbers: Sequence[str], units: Sequence[UnitReport], name: str, unit: str) -> str:
    return _single(name, numbers, [float(getattr(each, name)) for each in units], unit)


def _outcomes_of_units(numbers: Sequence[str], units: Sequence[UnitReport]) -> str:
    return bars(
        "rows",
        numbers,
        *(
            BarLayer(name, name, [float(getattr(unit, name)) for unit in units])
            for name in OUTCOMES
        ),
    )


def _outcomes(numbers: Sequence[str], reports: Sequence[WriteCounts]) -> str:
    return bars(
        "rows",
        numbers,
        *(
            BarLayer(name, name, [float(_sum(report, name)) for report in reports])
            for name in OUTCOMES
        ),
    )


def _skew(values: Sequence[float]) -> str:
    middle = statistics.median(values) if values else 0
    if not middle:
        return "the median is 0"
    return f"the median is {short(middle)}, the largest is {max(values) / middle:.1f} times that"


def _unit_word(units: Sequence[UnitReport]) -> str:
    return "bucket" if any(unit.skipped for unit in units) else "task"


def _milliseconds(progress: Mapping[str, Any] | None) -> float:
    return float((progress or {}).get("durationMs", {}).get("triggerExecution", 0))


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC" if seconds else ""
