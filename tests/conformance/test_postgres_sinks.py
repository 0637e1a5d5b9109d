"""batcher/4b.12: `PostgresSink` fulfils the contract of sinks, with every statement and every
conflict mode.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import asyncpg
import pyarrow as pa
import pytest
from tests.conformance.transaction_suite import TransactionConformance

from sluicegate.postgres import PostgresSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.testing import EmbeddedPostgres


class TestPostgresSink(TransactionConformance[tuple[int, str]]):
    """The defaults: one `INSERT` for small batches, and a conflict is an error."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def on(self, embedded_postgres: EmbeddedPostgres) -> None:
        self.dsn = embedded_postgres.dsn
        self.table = f"conformance_{type(self).__name__.lower()}"

    def sink(self) -> PostgresSink:
        return PostgresSink(self.dsn, table=self.table, columns=("id", "word"), **self.options)

    @pytest.fixture(autouse=True)
    def emptied(self, on: None) -> None:
        async def make() -> None:
            con = await asyncpg.connect(self.dsn)
            await con.execute(f"DROP TABLE IF EXISTS {self.table}")
            await con.execute(
                f"CREATE TABLE {self.table} (nr serial, id int PRIMARY KEY, word text NOT NULL)"
            )
            await con.close()

        asyncio.run(make())

    def item(self, number: int) -> tuple[int, str]:
        return number, "x"

    def bad_item(self, number: int) -> Any:
        return number, None

    def columns(self, items: Sequence[Any]) -> Any:
        ids, words = zip(*items, strict=True)
        return pa.record_batch({"id": ids, "word": pa.array(words, pa.string())})

    async def stored(self) -> list[tuple[int, str]]:
        con = await asyncpg.connect(self.dsn)
        try:
            return [
                tuple(row)
                for row in await con.fetch(f"SELECT id, word FROM {self.table} ORDER BY nr")
            ]
        finally:
            await con.close()


@pytest.mark.long
class TestPostgresSinkCopying(TestPostgresSink):
    """`COPY` into the table, as the staging table is filled below."""

    options: ClassVar[dict[str, Any]] = {"copy_threshold": 1}


class TestPostgresSinkIgnoring(TestPostgresSink):
    """A staging table; conflicting rows are ignored."""

    options: ClassVar[dict[str, Any]] = {
        "copy_threshold": 1,
        "staging_threshold": 1,
        "on_conflict": "ignore",
    }


class TestPostgresSinkUpdating(TestPostgresSink):
    """Arrays; conflicting rows are replaced."""

    options: ClassVar[dict[str, Any]] = {"copy_threshold": 1, "on_conflict": "update"}
