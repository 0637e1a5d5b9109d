"""INSERT row by row, INSERT of many rows, unnest and COPY, by the size of the batch:
`PostgresSink`'s own statements, and asyncpg by hand.

Commits do not wait for the disk here (`synchronous_commit` is off). That wait is the same for every
statement, and on a busy disk it hides them all.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from penstock import RowBatch, send

from ..harness import US_PER_ITEM, Case, CaseUnavailableError, name_of, placed
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ..harness import Contender, Results, Turn

    Row = tuple[int, int, str, datetime]
    Write = Callable[[Sequence[Row]], Awaitable[None]]

SIZES = (1, 10, 30, 100, 300, 1_000, 3_000, 10_000)
WRITES = 300
"""Batches in a turn, at most."""
ROWS = 20_000
"""Rows in a turn, at most, unless one batch is larger."""
COLUMNS = ("event_id", "user_id", "action", "ts")
TABLE = """
DROP TABLE IF EXISTS events;
CREATE TABLE events (event_id bigint{key}, user_id bigint NOT NULL, action text NOT NULL, ts timestamptz NOT NULL);
"""
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
SETTINGS = {"synchronous_commit": "off"}
MOST_PARAMETERS = 32_767
"""What PostgreSQL's protocol allows in one statement."""

INSERT, UNNEST, COPY, STAGING = "INSERT per row", "unnest", "COPY", "COPY into staging"
VALUES = "asyncpg, one INSERT of many VALUES"


@dataclass(frozen=True)
class Way:
    """One of the sink's statements, by its name there."""

    name: str
    statement: Literal["insert", "unnest", "copy"]


PLAIN = (Way(INSERT, "insert"), Way(UNNEST, "unnest"), Way(COPY, "copy"))
CONFLICTS = (Way(INSERT, "insert"), Way(UNNEST, "unnest"), Way(STAGING, "copy"))


def rows_of(size: int, most: int) -> int:
    """How many rows a turn writes in batches of `size`."""
    return size * max(1, min(most // size, WRITES))


def _batches(size: int, rows: int, start: int = 0) -> Iterator[list[Row]]:
    for first in range(start, start + rows, size):
        yield [
            (n, n % 977, f"action {n % 31}", EPOCH + timedelta(seconds=n))
            for n in range(first, first + size)
        ]


def _ours(dsn: str, way: Way, size: int, rows: int, *, conflicts: bool) -> Turn:
    from penstock.sinks.postgres import PostgresSink

    sink = PostgresSink(
        dsn,
        table="events",
        columns=COLUMNS,
        statement=way.statement,
        on_conflict="ignore" if conflicts else "error",
        pool_size=1,
        connect_options={"server_settings": SETTINGS},
    )

    async def turn() -> Took:
        async def write(batch: Sequence[Row]) -> None:
            if errors := await send(sink, RowBatch(batch)):
                raise AssertionError(f"a row was refused: {errors}")

        await _prepare_table(dsn, conflicts=conflicts)
        async with sink:
            return await _timed(dsn, write, size, rows)

    return lambda: asyncio.run(turn())


def _by_hand(dsn: str, size: int, rows: int, *, conflicts: bool) -> Turn:
    import asyncpg

    places = ", ".join(
        "(" + ", ".join(f"${row * len(COLUMNS) + n + 1}" for n in range(len(COLUMNS))) + ")"
        for row in range(size)
    )
    statement = f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES {places}" + (
        " ON CONFLICT DO NOTHING" if conflicts else ""
    )

    async def turn() -> Took:
        await _prepare_table(dsn, conflicts=conflicts)
        connection = await asyncpg.connect(dsn, server_settings=SETTINGS)

        async def write(batch: Sequence[Row]) -> None:
            await connection.execute(statement, *(value for row in batch for value in row))

        try:
            return await _timed(dsn, write, size, rows)
        finally:
            await connection.close()

    return lambda: asyncio.run(turn())


async def _timed(dsn: str, write: Write, size: int, rows: int) -> Took:
    """One batch that is not timed, since a connection that has been open for long has prepared its
    statements; then the rest.
    """
    import asyncpg

    batches = list(_batches(size, rows + size))
    await write(batches[0])
    watch = Stopwatch()
    for batch in batches[1:]:
        await write(batch)
    took = watch.read()
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetchval("SELECT count(*) FROM events")
    finally:
        await connection.close()
    if found != rows + size:
        raise AssertionError(f"{found} of {rows + size} rows arrived")
    return took


async def _prepare_table(dsn: str, *, conflicts: bool) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(TABLE.format(key=" PRIMARY KEY" if conflicts else ""))
    finally:
        await connection.close()


@contextlib.contextmanager
def _prepare(count: int, ways: Sequence[Way], *, conflicts: bool) -> Iterator[Sequence[Contender]]:
    try:
        import asyncpg  # noqa: F401

        from penstock.testing import EmbeddedUnavailable, embedded_postgres
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    with contextlib.ExitStack() as opened:
        try:
            dsn = opened.enter_context(embedded_postgres()).dsn
        except EmbeddedUnavailable as missing:
            raise CaseUnavailableError(str(missing)) from missing
        contenders: list[Contender] = []
        for size in (size for size in SIZES if size <= max(count, SIZES[1])):
            rows = rows_of(size, count)
            contenders += [
                placed(
                    way.name,
                    size,
                    _ours(dsn, way, size, rows, conflicts=conflicts),
                    ours=True,
                    items=rows,
                )
                for way in ways
            ]
            if size * len(COLUMNS) <= MOST_PARAMETERS:
                contenders.append(
                    placed(VALUES, size, _by_hand(dsn, size, rows, conflicts=conflicts), items=rows)
                )
        yield contenders


def overtakes(results: Results, line: str, other: str) -> str:
    """From which size on `line` is the faster of the two."""
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
    """The range of the ratio at the larger sizes."""
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
        *(overtakes(results, COPY, other) for other in (INSERT, UNNEST, VALUES)),
        overtakes(results, UNNEST, INSERT),
        *(_how_much(results, COPY, other, 300) for other in (VALUES, INSERT, UNNEST)),
    ]
    return [note for note in notes if note]


def _conflict_notes(results: Results) -> Sequence[str]:
    notes = [
        overtakes(results, UNNEST, INSERT),
        overtakes(results, UNNEST, VALUES),
        overtakes(results, STAGING, UNNEST),
        overtakes(results, STAGING, INSERT),
        _how_much(results, UNNEST, VALUES, 300),
    ]
    return [note for note in notes if note]


def _case(
    name: str,
    title: str,
    ways: Sequence[Way],
    notes: Callable[[Results], Sequence[str]],
    *,
    conflicts: bool,
) -> Case:
    def prepare(count: int) -> contextlib.AbstractContextManager[Sequence[Contender]]:
        return _prepare(count, ways, conflicts=conflicts)

    return Case(
        name=name,
        title=title,
        prepare=prepare,
        items=ROWS,
        quick_items=10,
        unit=US_PER_ITEM,
        peers=(VALUES,),
        along="rows in a batch",
        notes=notes,
    )


CASE = _case(
    "statements",
    "Rows into PostgreSQL, by statement and batch",
    PLAIN,
    _plain_notes,
    conflicts=False,
)
CONFLICTS_CASE = _case(
    "conflicts",
    "Rows into a table with a key, ON CONFLICT DO NOTHING",
    CONFLICTS,
    _conflict_notes,
    conflicts=True,
)
