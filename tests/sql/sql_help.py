"""Tables for tests of `SqlSink`, read by a separate connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from sluicegate import RowBatch, send
from sluicegate.sql import SqlSink

if TYPE_CHECKING:
    from collections.abc import Sequence

SERIAL = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "mysql": "INT AUTO_INCREMENT PRIMARY KEY",
}


class SqlTable:
    """The table `words` of a database, and a second connection to it."""

    def __init__(self, url: str, look: str | None = None) -> None:
        self.url = url
        self.engine = sa.create_engine(look or url, poolclass=sa.NullPool)
        self.name = self.engine.dialect.name

    def make(
        self, columns: str = "id INT NOT NULL UNIQUE, word VARCHAR(20) NOT NULL", after: str = ""
    ) -> None:
        """Recreate the table."""
        self.run("DROP TABLE IF EXISTS words")
        self.run(f"CREATE TABLE words (nr {SERIAL[self.name]}, {columns}){after}")

    def run(self, statement: str) -> None:
        """Run a statement."""
        with self.engine.begin() as con:
            con.exec_driver_sql(statement)

    def rows(self, columns: str = "id, word", order: str = "nr") -> list[tuple[Any, ...]]:
        """The contents of the table."""
        with self.engine.connect() as con:
            query = f"SELECT {columns} FROM words ORDER BY {order}"
            return [tuple(row) for row in con.exec_driver_sql(query)]

    async def looked(self, columns: str = "id, word", order: str = "nr") -> list[tuple[Any, ...]]:
        """Like `rows`, for use outside the event loop."""
        return await asyncio.to_thread(self.rows, columns, order)

    def sink(self, columns: Sequence[str] = ("id", "word"), **options: Any) -> SqlSink:
        """A sink of the table."""
        return SqlSink(options.pop("url", self.url), table="words", columns=columns, **options)


async def written(sink: SqlSink, items: Sequence[Any], **options: Any) -> dict[int, BaseException]:
    """Write items in one batch; return the errors."""
    return await send(sink, RowBatch(items, **options))


def names(errors: dict[int, BaseException]) -> dict[int, str]:
    """The types of errors."""
    return {index: type(error).__name__ for index, error in errors.items()}


Made = "Callable[[], SqlTable]"
