"""A table and a table of positions, for transactional flows into PostgreSQL."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
from tests.postgres.access_help import access_from
from tests.postgres.sink.postgres_help import database

from sluicegate.postgres import PostgresSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.postgres.sink.postgres_help import Database

    from sluicegate import Message

COLUMNS = ("part", "at", "key")


def row_of(message: Message) -> tuple[int, int, str]:
    """The row of a record."""
    return message.partition, message.offset, str(message.key)


class KeptTable(NamedTuple):
    """A table of rows and the table of their positions."""

    db: Database

    @property
    def positions(self) -> str:
        """The name of the positions table."""
        return f"{self.db.table}_positions"

    def sink(self, dsn: str | None = None, **options: Any) -> PostgresSink:
        """A new sink for the table."""
        options = {"columns": COLUMNS, "positions": self.positions, "pool_size": 4, **options}
        return PostgresSink(
            access_from(dsn or self.db.dsn, options), table=self.db.table, **options
        )

    async def rows(self) -> list[tuple[int, int]]:
        """Partition and offset of each row, in write order."""
        found = await self.db.con.fetch(f"SELECT part, at FROM {self.db.table} ORDER BY n")
        return [(row["part"], row["at"]) for row in found]

    async def stored(self) -> dict[tuple[str, int], int | None]:
        """The stored positions, by group and partition."""
        found = await self.db.con.fetch(f"SELECT * FROM {self.positions}")
        return {(row["consumer_group"], row["partition"]): row["position"] for row in found}


@asynccontextmanager
async def kept_table(
    dsn: str, columns: str = "n bigserial, part int, at bigint, key text"
) -> AsyncIterator[KeptTable]:
    """A new table without positions."""
    async with database(dsn, columns) as db:
        made = KeptTable(db)
        await db.con.execute(f"DROP TABLE IF EXISTS {made.positions}")
        try:
            yield made
        finally:
            con = await asyncpg.connect(dsn)  # the server may have restarted
            await con.execute(f"DROP TABLE IF EXISTS {made.positions}")
            await con.close()
