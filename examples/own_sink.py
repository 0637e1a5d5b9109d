"""A sink of your own: writes rows to SQLite; a refused row fails alone."""

import asyncio
import sqlite3
import tempfile
from contextlib import AsyncExitStack, closing

import sluicegate

Row = tuple[int, str]
ROWS: list[Row] = [(1, "login"), (1, "login"), (2, "logout")]


class SqliteSink(sluicegate.sinks.Openable):
    """Writes rows to a table `events (id, action)`. A row that the table refuses fails alone."""

    _run_time = ("_database",)
    capabilities = sluicegate.Capabilities(max_concurrency=1)

    def __init__(self, path: str) -> None:
        self.path = path  # nothing is opened yet
        self._database: sqlite3.Connection | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        self._database = sqlite3.connect(self.path, check_same_thread=False)
        stack.callback(self._database.close)

    async def write(self, batch: sluicegate.Batch[Row]) -> sluicegate.WriteResult:
        return await sluicegate.in_thread(self._insert, batch)

    def _insert(self, batch: sluicegate.Batch[Row]) -> sluicegate.WriteResult:
        errors: dict[int, BaseException] = {}
        assert self._database is not None
        with self._database:  # one transaction
            for index, row in enumerate(batch):
                try:
                    self._database.execute("INSERT INTO events (id, action) VALUES (?, ?)", row)
                except sqlite3.IntegrityError as error:
                    errors[index] = error
        return sluicegate.WriteResult.failed(batch, errors)

    def classify(self, error: BaseException) -> sluicegate.ErrorClass | None:
        if isinstance(error, sqlite3.IntegrityError):
            return sluicegate.ErrorClass.PERMANENT
        return (
            sluicegate.ErrorClass.TRANSIENT if isinstance(error, sqlite3.OperationalError) else None
        )


async def main(path: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, action TEXT NOT NULL)")
    sink = sluicegate.stack(SqliteSink(path), sluicegate.Timeout(5.0), sluicegate.Retry())
    async with sluicegate.Batcher(sink) as batcher:
        receipts = [await batcher.submit(row) for row in ROWS]
    for row, receipt in zip(ROWS, receipts, strict=True):
        print(row, receipt.outcome)
    print(batcher.tally())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"{folder}/events.db"))
