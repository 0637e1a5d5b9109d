"""The usual loop: fetch, decode, write and commit, one after the other."""

from __future__ import annotations

from json import loads
from typing import TYPE_CHECKING, Any

from ...postgres import by_asyncpg
from ..ways import QUIET, joined
from .actions import row_of
from .runs import HELD_BACK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...destination import Destination, Opener, Row
    from .runs import Run, Way

    Write = Callable[[list[Row]], Awaitable[object]]


async def fetch_and_write(run: Run, write: Write, size: int) -> None:
    """Fetch, decode, write and commit up to `size` records at a time, until all rows are stored."""
    async with joined(
        run.bootstrap, run.topic, group=run.group, fetch_max_wait_ms=HELD_BACK
    ) as client:
        is_over = False
        while not is_over:
            fetched: dict[Any, list[Any]] = await client.getmany(timeout_ms=QUIET, max_records=size)
            if not fetched:
                return
            run.begin()
            rows = [row_of(loads(each.value)) for records in fetched.values() for each in records]
            await write(rows)
            await client.commit()
            is_over = run.store(len(rows))


def loop(opener: Opener, size: int) -> Way:
    """Run the loop into a table."""

    async def way(run: Run, to: Destination) -> None:
        async with opener(to) as write:
            await fetch_and_write(run, write, size)

    return way


def executemany(size: int) -> Way:
    """Write with an `INSERT` per row, in a pipeline."""
    return loop(by_asyncpg.executemany, size)


def copy(size: int) -> Way:
    """Write with `COPY`."""
    return loop(by_asyncpg.copy, size)
