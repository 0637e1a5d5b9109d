"""Tables of state and positions, and their contents."""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
from tests.postgres.access_help import access_from

from sluicegate.postgres import PostgresState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_numbers = itertools.count()


class StateTables:
    """The names of a test's own tables."""

    def __init__(self, dsn: str, con: Any) -> None:
        self.dsn = dsn
        self.con = con
        number = next(_numbers)
        self.table = f"State {number}"
        self.positions = f"State {number} positions"

    def state(self, **options: Any) -> PostgresState:
        """A state in these tables."""
        dsn = access_from(options.pop("dsn", self.dsn), options)
        return PostgresState(dsn, table=self.table, positions=self.positions, **options)

    async def position(self, partition: int = 0) -> int:
        """The stored position of a partition; 0 without one."""
        if await self.con.fetchval("SELECT to_regclass($1)", f'"{self.positions}"') is None:
            return 0
        query = f'SELECT position FROM "{self.positions}" WHERE partition = $1'
        return await self.con.fetchval(query, partition) or 0

    async def stored(self, partition: int = 0) -> tuple[int, dict[str, Any]]:
        """The position and the state of a partition, read in one snapshot."""
        found = await self.con.fetch(
            f'SELECT p.position, s.key, s.value::text FROM "{self.positions}" p '
            f'LEFT JOIN "{self.table}" s USING (consumer_group, topic, partition) '
            "WHERE p.partition = $1",
            partition,
        )
        position = found[0]["position"] if found else None
        state = {row["key"]: json.loads(row["value"]) for row in found if row["key"] is not None}
        return position or 0, state


@asynccontextmanager
async def state_tables(dsn: str) -> AsyncGenerator[StateTables]:
    """Tables that do not exist yet; dropped at the end."""
    con = await asyncpg.connect(dsn)
    made = StateTables(dsn, con)
    drop = f'DROP TABLE IF EXISTS "{made.table}", "{made.positions}" CASCADE'
    await con.execute(drop)
    try:
        yield made
    finally:
        await con.close()
        con = await asyncpg.connect(dsn)  # the server may have restarted
        await con.execute(drop)
        await con.close()
