"""Helpers for the tests of transactions in PostgreSQL."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.postgres.sink.postgres_help import Database, database

from sluicegate.sinks import Unit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from sluicegate.postgres import PostgresAccess, PostgresSink

UNIT = Unit(application="orders", version=7, part=1, parts=4, rule="id")


class Place(Database):
    """A test's own table and ledger."""

    @property
    def ledger(self) -> str:
        return f"{self.table}_ledger"

    def sink(
        self,
        columns: Sequence[str] | Mapping[str, str] = ("id", "word"),
        *,
        dsn: str | PostgresAccess | None = None,
        **options: Any,
    ) -> PostgresSink:
        return super().sink(columns, dsn=dsn, ledger=self.ledger, **options)

    async def entries(self, what: str = "version, part") -> list[tuple[Any, ...]]:
        return [
            tuple(row)
            for row in await self.con.fetch(f"SELECT {what} FROM {self.ledger} ORDER BY 1, 2")
        ]


@asynccontextmanager
async def place(dsn: str, columns: str = "id int PRIMARY KEY, word text") -> AsyncGenerator[Place]:
    async with database(dsn, columns) as db:
        yield Place(db.dsn, db.table, db.con)


def words(count: int, start: int = 0) -> list[tuple[int, str]]:
    return [(number, f"word {number}") for number in range(start, start + count)]
