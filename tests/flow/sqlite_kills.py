"""A flow into SQLite that is killed before each of its statements in turn.

`sqlite_kills.py FOLDER JOURNAL one|all` forks a process per statement, kills it with SIGKILL before it
executes that statement, checks that effects and position agree, and lets the next process continue.
It prints the number of kills.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from sluicegate import flow
from sluicegate.consumer import Commits, MemoryLog, MemorySource
from sluicegate.sql import SQLiteEffects

COUNT = 12
SECOND_TRANSACTION = (20, 24, 25, 26)
"""The numbers of an effect, of the position, of the COMMIT, and of the statement after it."""


def book(message: Any) -> None:
    """Two effects in different tables."""
    con = message.connection
    con.execute("INSERT INTO entries VALUES (?, ?)", (None, message.offset))
    con.execute("UPDATE total SET amount = amount + ?", (message.offset,))


async def run(path: Path, kill_at: int) -> None:
    """Continue the flow; the process ends before this statement."""
    seen = 0

    def count(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    log = MemoryLog()
    for number in range(COUNT):
        log.produce("orders", number, key="k")
    effects = SQLiteEffects(path, on_connect=lambda con: con.set_trace_callback(count))
    source = MemorySource(log, ends=True)
    await flow.transaction(source, effects, book, commits=Commits(every=0.01, after=3)).run()


def check(path: Path) -> int:
    """The stored position, which is exactly that of the effects."""
    con = sqlite3.connect(path)
    try:
        found = con.execute("SELECT position FROM sluicegate_positions").fetchall()
    except sqlite3.OperationalError:
        found = []
    position = int(found[0][0] or 0) if found else 0
    entries = [at for (at,) in con.execute("SELECT at FROM entries ORDER BY n")]
    ((amount,),) = con.execute("SELECT amount FROM total")
    con.close()
    assert entries == list(range(position)), (entries, position)
    assert amount == sum(entries)
    return position


def new(path: Path, journal: str) -> None:
    """A file with the tables of the handler."""
    con = sqlite3.connect(path)
    con.execute(f"PRAGMA journal_mode = {journal}")
    con.execute("CREATE TABLE entries (n INTEGER PRIMARY KEY, at INTEGER)")
    con.execute("CREATE TABLE total (amount INTEGER)")
    con.execute("INSERT INTO total VALUES (0)")
    con.commit()
    con.close()


def forked(path: Path, kill_at: int) -> bool:
    """Run in a process of its own; return whether it was killed."""
    child = os.fork()
    if not child:
        asyncio.run(run(path, kill_at))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in {0, signal.SIGKILL}, status
    return status != 0


def main(folder: Path, journal: str, kills: str) -> int:
    """Kill a fresh flow at the steps of one transaction, or before any; then let it finish,
    or kill it again. Returns the number of kills.
    """
    done = 0
    for kill_at in SECOND_TRANSACTION if kills == "one" else range(1, 1000):
        path = folder / f"{kill_at}.db"
        new(path, journal)
        was_killed = forked(path, kill_at)
        done += was_killed
        check(path)
        while kills == "all" and check(path) < COUNT and forked(path, kill_at):
            done += 1
            kill_at += 3  # the next process gets a little further
        forked(path, 0)
        assert check(path) == COUNT
        if not was_killed:
            break
    return done


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])}\n")
