"""Values that are lists but not arrays: points, paths, ranges and multiranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("asyncpg")
from asyncpg import Range
from tests.postgres.sink.postgres_help import database, written

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

VALUES: dict[str, tuple[Any, str]] = {
    "point": ([1, 2], "(1,2)"),
    "path": ([(1, 2), (3, 4)], "[(1,2),(3,4)]"),
    "int4range": ([1, 4], "[1,5)"),
    "int4multirange": ([Range(1, 3), Range(5, 7)], "{[1,3),[5,7)}"),
}


@pytest.mark.parametrize("kind", VALUES)
async def test_a_list_that_is_no_array_is_stored_by_a_batch_of_any_size(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, kind: str
) -> None:
    """An array of lists would be a two-dimensional array."""
    value, stored = VALUES[kind]
    async with database(embedded_postgres.dsn, f"id int PRIMARY KEY, word {kind}") as db:
        async with db.sink(on_conflict="update") as sink:
            for size in (2, 200):
                assert await written(sink, [(number, value) for number in range(size)]) == {}
        found = await db.con.fetch(f"SELECT word::text, count(*) FROM {db.table} GROUP BY 1")
    assert [tuple(row) for row in found] == [(stored, 200)]
