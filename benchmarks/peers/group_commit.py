"""Items in one SQLite file by hand: producers of 5 ms share one commit, which waits for the disk."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

DELAY = 0.005


class GroupCommit:
    """A table of JSON texts. One connection, one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._committing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        self._thread = ThreadPoolExecutor(1)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown()
        self._db.close()

    async def put(self, item: Any) -> None:
        """Store an item; suspends until it is on disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((json.dumps(item), done))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit())
        await done

    async def _commit(self) -> None:
        while self._waiting:
            await asyncio.sleep(DELAY)
            group, self._waiting = self._waiting, []
            rows = [(value,) for value, _ in group]
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._insert, rows)
            for _, done in group:
                if not done.done():
                    done.set_result(None)
        self._committing = None

    def _insert(self, rows: list[tuple[str]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO items (value) VALUES (?)", rows)
        self._db.execute("COMMIT")
