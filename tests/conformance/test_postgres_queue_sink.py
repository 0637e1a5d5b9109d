"""batcher/4b.12: `PostgresQueueSink` fulfils the contract of sinks, with ids derived by the sink
and with ids of the items.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import pyarrow as pa
import pytest
from tests.postgres.queues.sink.queue_help import create_queue
from tests.postgres.streams.log_pool import lent

from sluicegate.postgres import PostgresQueueSink
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate.testing import EmbeddedPostgres


class TestPostgresQueueSink(SinkConformance[dict[str, Any]]):
    """Ids derived from the write keys."""

    options: ClassVar[dict[str, Any]] = {}
    queue: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def made(self, embedded_postgres: EmbeddedPostgres) -> Iterator[None]:
        with lent(embedded_postgres.dsn) as self.log:
            asyncio.run(create_queue(self.log, "jobs", **self.queue))
            yield

    def sink(self) -> PostgresQueueSink:
        return PostgresQueueSink(
            self.log.dsn, schema=self.log.schema, queue="jobs", key="word", **self.options
        )

    def item(self, number: int) -> dict[str, Any]:
        return {"n": number, "word": f"word-{number % 3}"}

    def bad_item(self, number: int) -> Any:
        return {**self.item(number), "word": ""}

    def columns(self, items: Sequence[Any]) -> Any:
        return pa.RecordBatch.from_pylist(list(items))

    async def stored(self) -> list[dict[str, Any]]:
        async with self.log.connected() as con:
            rows = await con.fetch(f"SELECT payload FROM {self.log.sql}.job ORDER BY place")
        found = [json.loads(row[0]) for row in rows]
        return [{name: each[name] for name in ("n", "word")} for each in found]


def number_as_id(item: dict[str, Any]) -> UUID:
    return UUID(int=item["n"])


class TestPostgresQueueSinkWithIds(TestPostgresQueueSink):
    """Ids of the items, so that an item exists once however often it is written."""

    options: ClassVar[dict[str, Any]] = {"id": number_as_id}


@pytest.mark.long
class TestPostgresQueueSinkOfABlake3Queue(TestPostgresQueueSink):
    """Slots that the sink computes, priorities, and a queue with a maximum depth."""

    options: ClassVar[dict[str, Any]] = {"priority": "n"}
    queue: ClassVar[dict[str, Any]] = {"slot_function": "blake3", "max_depth": 1_000_000}
