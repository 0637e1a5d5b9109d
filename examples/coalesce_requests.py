"""Request coalescing: the lookups of many concurrent callers become one query."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import cast

from sluicegate import Batch, Batcher, Limits, WriteResult

STOCK = [("bolts", 70), ("nuts", 25), ("pins", 900)]
PAGE = ["nuts", "bolts", "nuts", "rivets"]


def look_up(path: Path, batch: Batch[str]) -> WriteResult:
    """Run one query for all callers; a plain function runs in a thread."""
    wanted = list(dict.fromkeys(batch))  # each item once
    marks = ", ".join("?" * len(wanted))
    query = f"SELECT item, amount FROM stock WHERE item IN ({marks})"  # noqa: S608
    with closing(sqlite3.connect(path)) as con:
        found = dict(con.execute(query, wanted).fetchall())
    print(f"1 query of {len(wanted)} items for {len(batch)} callers")
    levels = {index: found.get(item) for index, item in enumerate(batch)}
    return WriteResult.failed(batch, {}, details=levels)


async def level_of(lookups: Batcher[str], item: str) -> int | None:
    """Return the stock of an item; `None` if there is no such item."""
    receipt = await lookups.submit(item)
    await receipt  # raises ItemFailed if the query failed
    return cast("int | None", receipt.detail)


async def main(path: Path) -> None:
    with closing(sqlite3.connect(path)) as con, con:
        con.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, amount INT)")
        con.executemany("INSERT INTO stock VALUES (?, ?)", STOCK)
    limits = Limits(max_items=500, max_delay=0)
    async with Batcher(partial(look_up, path), name="stock levels", limits=limits) as lookups:
        print(await asyncio.gather(*(level_of(lookups, item) for item in PAGE)))
        crowd = await asyncio.gather(*(level_of(lookups, item) for item in PAGE * 50))
        print(f"{len(crowd)} answers: {crowd[:4]}, ...")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "stock.db"))
