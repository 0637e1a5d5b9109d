"""Rows with versions: which rows replace others, and rows without a version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("asyncpg")
from tests.postgres.sink.postgres_help import database, written  # noqa: E402

from sluicegate import ArrowBatch, PermanentError, RowBatch, send  # noqa: E402

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

SHAPE = "id int PRIMARY KEY, word text, version int"
COLUMNS = ("id", "word", "version")
VERSIONED: dict[str, Any] = {"on_conflict": "update", "version_column": "version"}
WAYS: dict[str, dict[str, Any]] = {
    "automatic": {},
    "arrays": {"statement": "unnest"},
    "staging": {"statement": "copy"},
}


@pytest.mark.parametrize("way", [*WAYS, "columns"])
async def test_a_row_without_a_version_fails_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """batcher/B38: it would replace nothing but be reported as delivered. A stored row without a
    version is replaced by any other.
    """
    rows = [(1, "a", None), (2, "b", 1), (3, "c", None), (4, "d", 1), (4, "e", None), (5, "f", 0)]
    async with database(embedded_postgres.dsn, SHAPE) as db:
        await db.con.execute(f"INSERT INTO {db.table} VALUES (1, 'old', 1), (2, 'old', NULL)")
        async with db.sink(COLUMNS, **VERSIONED, **WAYS.get(way, {})) as sink:
            if way == "columns":
                found = [pa.array(each) for each in zip(*rows, strict=True)]
                errors = await send(sink, ArrowBatch(pa.record_batch(found, COLUMNS)))
            else:
                errors = await written(sink, rows)
        assert await db.rows() == [(1, "old", 1), (2, "b", 1), (4, "d", 1), (5, "f", 0)]
    assert [*errors] == [0, 2, 4]
    for error in errors.values():
        assert isinstance(error, PermanentError)
        assert str(error) == "a row without a version (column 'version') cannot replace another"


async def test_rows_after_one_without_a_version_wait_for_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, SHAPE) as db:
        async with db.sink(COLUMNS, **VERSIONED) as sink:
            rows = [(1, "a", None), (1, "b", 2), (2, "c", 1)]
            errors = await send(sink, RowBatch(rows, keys=[1, 1, 2]))
        assert [type(error).__name__ for error in errors.values()] == [
            "PermanentError",
            "KeyStopped",
        ]
        assert await db.rows() == [(2, "c", 1)]


@pytest.mark.parametrize("way", WAYS)
async def test_the_version_is_replaced_with_the_columns_that_are(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """batcher/B38: otherwise the next version would be compared with the first one."""
    async with database(embedded_postgres.dsn, f"{SHAPE}, since int") as db:
        options: dict[str, Any] = {**VERSIONED, "update_columns": ("word",), **WAYS[way]}
        async with db.sink((*COLUMNS, "since"), **options) as sink:
            for version in (1, 5, 3):
                assert await written(sink, [(1, f"v{version}", version, version)]) == {}
        assert await db.rows() == [(1, "v5", 5, 1)]
