"""batcher/4b.12: PostgresSink, in each way it writes, keeps what a sink has to keep."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

pytest.importorskip("asyncpg")
import asyncpg

from penstock.sinks import PostgresSink
from penstock.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.testing import EmbeddedPostgres

Row = tuple[int, str]


async def query(dsn: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(sql))
    finally:
        await connection.close()


class Rows(SinkConformance[Row]):
    """Rows of a table that refuses an empty text."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def table(self, embedded_postgres: EmbeddedPostgres) -> None:
        self.dsn = embedded_postgres.dsn
        asyncio.run(query(self.dsn, "DROP TABLE IF EXISTS conformance"))
        columns = "id bigint PRIMARY KEY, name text NOT NULL CHECK (name <> ''), serial bigserial"
        asyncio.run(query(self.dsn, f"CREATE TABLE conformance ({columns})"))

    def sink(self) -> PostgresSink:
        return PostgresSink(self.dsn, table="conformance", columns=("id", "name"), pool_size=4, **self.options)

    def item(self, number: int) -> Row:
        return number, f"name {number}"

    def bad_item(self, number: int) -> Row:
        return number, ""

    async def stored(self) -> Sequence[Row]:
        return [tuple(row) for row in await query(self.dsn, "SELECT id, name FROM conformance ORDER BY serial")]


class TestInsert(Rows):
    """Row by row, as small batches go."""


class TestCopy(Rows):
    """By COPY."""

    options: ClassVar[dict[str, Any]] = {"statement": "copy"}


class TestUnnest(Rows):
    """By one INSERT from arrays."""

    options: ClassVar[dict[str, Any]] = {"statement": "unnest"}


class TestIgnore(Rows):
    """What is there stays as it is."""

    options: ClassVar[dict[str, Any]] = {"on_conflict": "ignore"}


class TestUpdate(Rows):
    """What is there is replaced."""

    options: ClassVar[dict[str, Any]] = {"on_conflict": "update"}


class TestUpdateByStaging(Rows):
    """Through a temporary table."""

    options: ClassVar[dict[str, Any]] = {"on_conflict": "update", "copy_threshold": 1, "staging_threshold": 1}
