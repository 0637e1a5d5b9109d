"""A table that shows the order and the number of row writes.

White box: the map beside a stored position is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
from tests.postgres.sink.postgres_help import database

from sluicegate.consumer.progress import offset_map

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tests.postgres.sink.postgres_help import Database

    from sluicegate.consumer import Position


class Written(NamedTuple):
    """A row and its place in the write order."""

    number: int
    part: int
    at: int
    key: str


def table(dsn: str) -> AbstractAsyncContextManager[Database]:
    """A table that accepts the same row twice."""
    return database(dsn, "n bigserial, part int, at bigint, key text")


async def written(db: Database) -> list[Written]:
    """All rows in write order."""
    con = await asyncpg.connect(db.dsn)  # the server may have restarted
    try:
        found = await con.fetch(f"SELECT n, part, at, key FROM {db.table} ORDER BY n")
    finally:
        await con.close()
    return [Written(*row) for row in found]


def assert_in_order(rows: list[Written]) -> None:
    """Check that the first writes of each key are in offset order."""
    by_key: dict[Any, dict[int, None]] = {}
    for row in rows:
        by_key.setdefault((row.part, row.key), {}).setdefault(row.at)
    for key, offsets in by_key.items():
        assert list(offsets) == sorted(offsets), key


def covered(position: Position) -> set[int]:
    """The offsets covered by a stored position and its offset map."""
    known = set(range(position.offset))
    for low, high in offset_map.decode(*position):
        known.update(range(low, high))
    return known
