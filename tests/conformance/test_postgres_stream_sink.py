"""batcher/4b.12: `PostgresStreamSink` fulfils the contract of sinks, with ids derived by the sink
and with ids of the items.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import pyarrow as pa
import pytest
from tests.postgres.streams.log_pool import lent

from sluicegate.postgres import PostgresStreamSink
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate.testing import EmbeddedPostgres


class TestPostgresStreamSink(SinkConformance[dict[str, Any]]):
    """Ids derived from the write keys."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def made(self, embedded_postgres: EmbeddedPostgres) -> Iterator[None]:
        with lent(embedded_postgres.dsn) as self.log:
            yield

    def sink(self) -> PostgresStreamSink:
        return PostgresStreamSink(
            self.log.dsn, schema=self.log.schema, stream="word", type="kind", **self.options
        )

    def item(self, number: int) -> dict[str, Any]:
        return {"n": number, "word": f"word-{number % 3}", "kind": "Happened"}

    def bad_item(self, number: int) -> Any:
        return {**self.item(number), "kind": ""}

    def columns(self, items: Sequence[Any]) -> Any:
        return pa.RecordBatch.from_pylist(list(items))

    async def stored(self) -> list[dict[str, Any]]:
        async with self.log.connected() as con:
            rows = await con.fetch(f"SELECT data FROM {self.log.sql}.message ORDER BY position")
        found = [json.loads(row[0]) for row in rows]
        return [{name: each[name] for name in ("n", "word", "kind")} for each in found]


def number_as_id(item: dict[str, Any]) -> UUID:
    return UUID(int=item["n"])


class TestPostgresStreamSinkWithIds(TestPostgresStreamSink):
    """Ids of the items, so that an item exists once however often it is written."""

    options: ClassVar[dict[str, Any]] = {"id": number_as_id}


@pytest.mark.long
class TestPostgresStreamSinkWithVersions(TestPostgresStreamSink):
    """An expected version for each item, so that each is appended separately."""

    options: ClassVar[dict[str, Any]] = {"expected": lambda item: None}
