"""Rows of four columns, in batches of any size, and the turns that write them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sluicegate import RowBatch, send

from .destination import Destination, Table, timed
from .harness import placed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from .destination import Opener, Row, Write
    from .harness import Contender, Turn
    from .stopwatch import Took

SIZES = (1, 10, 30, 100, 300, 1_000, 3_000, 10_000)
WRITES = 300
"""Maximum number of batches in a turn."""
ROWS = 20_000
"""Maximum number of rows in a turn, unless one batch is larger."""
QUICK_ROWS = 10
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
EVENTS = Table(
    "events", {"event_id": "bigint", "user_id": "bigint", "action": "text", "ts": "timestamptz"}
)
KEYED = replace(EVENTS, key="event_id")
ALONG = "rows in a batch"


def sizes(count: int, most: int = SIZES[-1]) -> list[int]:
    """Return the batch sizes for a case with this number of items."""
    return [size for size in SIZES if size <= min(most, max(count, SIZES[1]))]


def contender(
    line: str,
    size: int,
    opener: Opener,
    to: Destination,
    *,
    count: int,
    half_full: bool = False,
    ours: bool = False,
) -> Contender:
    """Make a contender that writes `count` rows in batches of `size`."""
    rows = size * max(1, min(count // size, WRITES))
    turn = _turn(opener, to, size, rows, half_full=half_full)
    return placed(line, size, turn, ours=ours, items=rows)


def our_sink(*, statement: str = "auto", **options: Any) -> Opener:
    """Write by `PostgresSink` with one connection, and this statement."""

    @asynccontextmanager
    async def opened(to: Destination) -> AsyncGenerator[Write]:
        from sluicegate.postgres import PostgresSink

        from .postgres.forced import forced

        table = to.table
        sink = PostgresSink(to.dsn, table=table.name, columns=table.columns, pool_size=1, **options)

        async def write(batch: Sequence[Row]) -> None:
            if errors := await send(sink, RowBatch(batch)):
                raise AssertionError(f"a row was refused: {errors}")

        async with forced(sink, statement):
            yield write

    return opened


def _turn(opener: Opener, to: Destination, size: int, rows: int, *, half_full: bool) -> Turn:
    """Write into an empty table, or one with every second key."""
    every_second = (
        f"INSERT INTO {to.table.name} SELECT n, 0, '', now() "
        f"FROM generate_series(0, {rows + size - 1}, 2) n"
    )

    async def turn() -> Took:
        await to.make_empty(*([every_second] if half_full else []))
        took = await timed(opener, to, list(_batches(size, rows + size)))
        await to.check(rows + size)
        return took

    return lambda: asyncio.run(turn())


def _batches(size: int, rows: int) -> Iterator[list[Row]]:
    for first in range(0, rows, size):
        yield [
            (n, n % 977, f"action {n % 31}", EPOCH + timedelta(seconds=n))
            for n in range(first, first + size)
        ]
