"""A sink of your own: rows into SQLite; a refused row fails alone."""

import sqlite3
from contextlib import AsyncExitStack

import penstock

Row = tuple[int, str]


class SqliteSink(penstock.Openable):
    """Writes rows to a table `events (id, action)`. A row that the table refuses fails alone."""

    _run_time = ("_database",)
    capabilities = penstock.Capabilities(max_concurrency=1)

    def __init__(self, path: str) -> None:
        self.path = path  # a description: nothing is opened yet
        self._database: sqlite3.Connection | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        self._database = sqlite3.connect(self.path, check_same_thread=False)
        stack.callback(self._database.close)

    async def write(self, batch: penstock.Batch[Row]) -> penstock.WriteResult:
        return await penstock.in_thread(self._insert, batch)

    def _insert(self, batch: penstock.Batch[Row]) -> penstock.WriteResult:
        errors: dict[int, BaseException] = {}
        assert self._database is not None
        with self._database:  # one transaction
            for index, row in enumerate(batch):
                try:
                    self._database.execute("INSERT INTO events (id, action) VALUES (?, ?)", row)
                except sqlite3.IntegrityError as error:
                    errors[index] = error
        return penstock.WriteResult.failed(batch, errors)

    def classify(self, error: BaseException) -> penstock.ErrorClass | None:
        if isinstance(error, sqlite3.IntegrityError):
            return penstock.ErrorClass.PERMANENT
        return (
            penstock.ErrorClass.TRANSIENT if isinstance(error, sqlite3.OperationalError) else None
        )
