"""The statements of `PostgresSink` by batch size, including its own choice, and a hand-written
`INSERT` with many VALUES: into a plain table, and with conflicts that are ignored or update the row.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...destination import NO_WAIT, Destination, Table, postgres_server
from ...events import ALONG, EVENTS, KEYED, QUICK_ROWS, ROWS, SIZES, contender, our_sink, sizes
from ...harness import US_PER_ITEM, Case, name_of
from ...postgres import by_asyncpg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...harness import Contender, Results

OURS = "PostgresSink"
VALUES, UNNEST = "VALUES", "unnest"
COPY, STAGING = "COPY", "COPY into staging"
BY_HAND = "asyncpg, one INSERT of many VALUES"
SMALL = 1_000
UPDATES = ", ".join(f"{name} = excluded.{name}" for name in KEYED.columns if name != KEYED.key)


@dataclass(frozen=True)
class Mode:
    """The treatment of conflicting and stored rows: the sink's options, and the same in SQL."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    clauses: str = ""
    table: Table = EVENTS
    half_full: bool = False
    """Whether every second key already exists."""
    most: int = SIZES[-1]
    """Rows of the largest batch."""


PLAIN = Mode()
IGNORE = Mode({"on_conflict": "ignore"}, " ON CONFLICT DO NOTHING", KEYED)
UPDATE = Mode(
    {"on_conflict": "update"},
    f" ON CONFLICT ({KEYED.key}) DO UPDATE SET {UPDATES}",
    KEYED,
    half_full=True,
    most=SMALL,
)


@contextlib.contextmanager
def _prepare(count: int, ways: Mapping[str, str], mode: Mode) -> Iterator[Sequence[Contender]]:
    sinks = {line: our_sink(statement=name, **mode.options) for line, name in ways.items()}
    by_hand = {BY_HAND: by_asyncpg.values}
    with postgres_server() as dsn:
        to = Destination(dsn + NO_WAIT, mode.table, mode.clauses)
        yield [
            contender(
                line,
                size,
                opener,
                to,
                count=count,
                half_full=mode.half_full,
                ours=line in sinks,
            )
            for size in sizes(count, mode.most)
            for line, opener in {**sinks, **by_hand}.items()
            if line not in {VALUES, BY_HAND} or size <= mode.table.most_rows
        ]


def overtakes(results: Results, line: str, other: str) -> str:
    """Describe the size from which `line` is the faster of the two."""
    both = [
        at
        for at in results.points
        if {name_of(line, at), name_of(other, at)} <= results.figures.keys()
    ]
    ahead: int | str | None = None
    for at in reversed(both):
        if results.ratio(name_of(line, at), name_of(other, at)).median <= 1:
            break
        ahead = at
    if ahead is None:
        return f"{line} is not ahead of {other} at {both[-1]:,} rows."
    return (
        f"{line} is ahead of {other} from {ahead:,} rows on."
        if ahead != both[0]
        else f"{line} is ahead of {other} at every size."
    )


def _how_much(results: Results, line: str, other: str, least: int) -> str:
    """Describe the range of the ratio at the larger sizes."""
    both = [
        at
        for at in results.points
        if isinstance(at, int) and at >= least and name_of(other, at) in results.figures
    ]
    if not both:
        return ""
    ratios = [results.ratio(name_of(line, at), name_of(other, at)).median for at in both]
    return (
        f"With {least:,} rows and more {line} is {min(ratios):.1f} to {max(ratios):.1f} "
        f"times as fast as {other}."
    )


def _plain_notes(results: Results) -> Sequence[str]:
    notes = [
        *(overtakes(results, COPY, other) for other in (VALUES, UNNEST, BY_HAND)),
        overtakes(results, UNNEST, VALUES),
        *(_how_much(results, COPY, other, 300) for other in (BY_HAND, UNNEST)),
    ]
    return [note for note in notes if note]


def _conflict_notes(results: Results) -> Sequence[str]:
    notes = [
        overtakes(results, UNNEST, VALUES),
        overtakes(results, STAGING, UNNEST),
        _how_much(results, UNNEST, BY_HAND, 300),
    ]
    return [note for note in notes if note]


def _small_notes(results: Results) -> Sequence[str]:
    return [overtakes(results, UNNEST, VALUES)]


def _case(
    name: str,
    title: str,
    ways: Mapping[str, str],
    mode: Mode,
    notes: Callable[[Results], Sequence[str]],
) -> Case:
    def prepare(count: int) -> contextlib.AbstractContextManager[Sequence[Contender]]:
        return _prepare(count, ways, mode)

    return Case(
        name=name,
        title=title,
        prepare=prepare,
        items=ROWS,
        quick_items=QUICK_ROWS,
        unit=US_PER_ITEM,
        peers=(BY_HAND,),
        along=ALONG,
        notes=notes,
    )


CASE = _case(
    "statements",
    "Rows into PostgreSQL, by statement and batch",
    {OURS: "auto", VALUES: "values", UNNEST: "unnest", COPY: "copy"},
    PLAIN,
    _plain_notes,
)
CONFLICTS_CASE = _case(
    "conflicts",
    "Rows into a table with a key, ON CONFLICT DO NOTHING",
    {OURS: "auto", VALUES: "values", UNNEST: "unnest", STAGING: "copy"},
    IGNORE,
    _conflict_notes,
)
UPDATES_CASE = _case(
    "updates",
    "Rows into a table with a key, ON CONFLICT DO UPDATE, every second key exists",
    {OURS: "auto", VALUES: "values", UNNEST: "unnest"},
    UPDATE,
    _small_notes,
)
CASES = (CASE, CONFLICTS_CASE, UPDATES_CASE)
