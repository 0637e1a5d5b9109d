"""A writer to a SQL database in a process that tests kill.

`kills_child.py '{"url": ..., "first": 0, "size": 10, "is_telling": false}'` writes batches of
numbered rows into the table `words`. After each, it reports the number of delivered rows to its
parent, and with `is_telling` each statement, by an empty line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from sluicegate import RowBatch, send
from sluicegate.sql import SqlSink


def telling(url: str) -> Any:
    """An engine that reports each statement."""
    engine = sa.create_engine(url)
    event.listen(
        engine,
        "after_cursor_execute",
        lambda *_: print(flush=True),  # noqa: T201
    )
    return engine


async def write(*, url: str, first: int, size: int, is_telling: bool) -> None:
    """Write until a signal arrives. Rows stored by an earlier process stay."""
    sink = SqlSink(
        telling(url) if is_telling else url,
        table="words",
        columns=("id", "word"),
        on_conflict="ignore",
    )
    async with sink:
        while True:
            errors = await send(sink, RowBatch([(first + at, "w") for at in range(size)]))
            assert not errors, errors
            first += size
            print(first, flush=True)  # noqa: T201  # the parent reads it


if __name__ == "__main__":
    asyncio.run(write(**json.loads(sys.argv[1])))
