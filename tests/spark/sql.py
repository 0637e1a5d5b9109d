"""SQL statements for the PostgreSQL that Spark writes to, outside Spark."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg


def query(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a SELECT. Other statements, of which there may be several, return none."""

    async def ask() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(dsn)
        try:
            if sql.startswith("SELECT"):
                return [tuple(row) for row in await connection.fetch(sql)]
            await connection.execute(sql)
            return []
        finally:
            await connection.close()

    return asyncio.run(ask())
