"""A handler whose effects in an SQLite file commit together with the position of its source: each
message takes effect once, whatever fails in between.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sluicegate import flow
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.sql import SQLiteEffects

if TYPE_CHECKING:
    from sluicegate import Message

crashes = ["in the middle of deposit 2"]


def book(message: Message) -> None:
    con = message.connection  # of sqlite3, in the open transaction
    con.execute(
        "INSERT INTO accounts VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET balance = balance + excluded.balance",
        (message.key, message.value),
    )
    if message.value == 2 and crashes:
        raise ConnectionError(crashes.pop())
    con.execute("INSERT INTO deposits VALUES (?, ?)", (message.key, message.value))


async def main(path: Path) -> None:
    with closing(sqlite3.connect(path)) as con:
        con.execute("PRAGMA journal_mode = WAL")  # readers and the flow do not wait for each other
        con.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER)")
        con.execute("CREATE TABLE deposits (name TEXT, amount INTEGER)")
    log = MemoryLog()
    for amount in (1, 2, 3, 4):
        log.produce("deposits", amount, key="ann")
    source = MemorySource(log, ends=True)
    report = await flow.transaction(source, SQLiteEffects(path), book, name="balances").run()
    with closing(sqlite3.connect(path)) as con:
        for name, balance in con.execute("SELECT * FROM accounts"):
            print(name, "has", balance)
        print("deposits:", [amount for (amount,) in con.execute("SELECT amount FROM deposits")])
        ((position,),) = con.execute("SELECT position FROM sluicegate_positions")
        print("position:", position)
    print("complete:", report.complete)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "state.db"))
