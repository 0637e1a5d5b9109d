"""Conditional upsert: late or repeated events never replace a newer row."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sluicegate import Batcher, Retry, stack
from sluicegate.sql import SqlSink


class Order(NamedTuple):
    id: str
    version: int
    status: str
    first_seen: str
    deleted: bool = False


TABLE = """CREATE TABLE orders (
    id TEXT PRIMARY KEY, version INT NOT NULL, status TEXT, first_seen TEXT, deleted BOOLEAN)"""
MORNING = [
    Order("A", 1, "placed", "08:00"),
    Order("B", 1, "placed", "08:01"),
    Order("A", 3, "shipped", "08:05"),
]
LATER = [
    Order("A", 2, "paid", "08:09"),  # arrives late
    Order("B", 1, "placed", "08:01"),  # arrives again
    Order("B", 3, "", "08:10", deleted=True),
    Order("B", 2, "paid", "08:11"),  # after the deletion
]


async def main(path: Path) -> None:
    with closing(sqlite3.connect(path)) as con:
        con.execute(TABLE)
    sink = SqlSink(
        f"sqlite:///{path}",
        table="orders",
        columns=Order._fields,
        on_conflict="update",
        conflict_columns=["id"],
        update_columns=["version", "status", "deleted"],
        version_column="version",
    )
    async with Batcher(stack(sink, Retry()), name="orders") as batcher:
        await batcher.add_many(MORNING)
        await batcher.flush()
        await batcher.add_many(LATER)
    assert batcher.report is not None
    print(batcher.report.tally)
    with closing(sqlite3.connect(path)) as con:
        for row in con.execute("SELECT * FROM orders ORDER BY id"):
            print(row)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "orders.db"))
