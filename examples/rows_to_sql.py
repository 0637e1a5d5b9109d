"""Rows into a table of SQLite, which needs no server; MySQL and MariaDB work alike."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from sluicegate import Batcher, DeadLetter, Limits, Retry, stack
from sluicegate.sinks import DeadLetterRecord, MemorySink
from sluicegate.sql import SqlSink

TABLE = "CREATE TABLE stock (item TEXT PRIMARY KEY, version INT NOT NULL, amount INT CHECK (amount >= 0))"
COUNTED = [
    {"item": "nuts", "version": 1, "amount": 40},
    {"item": "bolts", "version": 1, "amount": 70},
    {"item": "nuts", "version": 3, "amount": 25},
    {"item": "nuts", "version": 2, "amount": 31},
    {"item": "pins", "version": 1, "amount": -5},
]


async def main(path: Path) -> None:
    with closing(sqlite3.connect(path)) as con:
        con.execute(TABLE)
    stock = SqlSink(
        f"sqlite:///{path}",
        table="stock",
        columns=["item", "version", "amount"],
        on_conflict="update",
        version_column="version",
    )
    letters = MemorySink[DeadLetterRecord[dict[str, object]]]()
    sink = stack(stock, Retry(attempts=5), DeadLetter(letters))
    async with Batcher(sink, limits=Limits(max_items=1000, max_delay=0.1)) as batcher:
        for row in COUNTED:
            await batcher.add(row)
    assert batcher.report is not None
    print(batcher.report.tally)
    for letter in letters.items:
        print(letter.item["item"], letter.message)
    with closing(sqlite3.connect(path)) as con:
        for row in con.execute("SELECT * FROM stock ORDER BY item"):
            print(row)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "stock.db"))
