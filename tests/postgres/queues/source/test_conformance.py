"""The conformance suite of sources, on a queue in a real PostgreSQL.

Proven here: O-T1, O-T5, O-T7, O-T8.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.conformance.consumed_source import ConsumedSourceConformance
from tests.postgres.queues.source.lanes_help import LaneSource, LaneTopic
from tests.postgres.streams.log_help import Log

from sluicegate.consumer import Position, TopicPartition
from sluicegate.postgres import PostgresAccess, PostgresQueueSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate.consumer import Source

LEASE = 4.0


class TestPostgresQueueSource(ConsumedSourceConformance):
    """A topic is a queue, and a partition one of its lanes."""

    capabilities = LaneSource.capabilities
    lacks = {"holes"}

    @pytest.fixture(autouse=True)
    def _log(self, log: Log) -> None:
        self.dsn = log.dsn
        self.unused = [log]
        self.topics: dict[str, LaneTopic] = {}

    async def new_topic(self, partitions: int) -> str:
        log = self.unused.pop()
        async with log.connected() as con:
            await con.execute(f"INSERT INTO {log.sql}.queue (name) VALUES ($1)", log.schema)
        topic = self.topics[log.schema] = LaneTopic(log.schema)
        topic.places.update({partition: [] for partition in range(partitions)})
        return log.schema

    def source(self, topic: str) -> Source:
        made = PostgresQueueSource(
            PostgresAccess(self.dsn, close_timeout=2.0),
            queue=topic,
            schema=topic,
            lease=LEASE,
            per_key=1000,
            poll=0.02,
        )
        return LaneSource(made, self.topics[topic])

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        headers = [
            {"value": value.decode(), **({} if key is None else {"key": key.decode()})}
            for key, value in entries
        ]
        await self._enqueue(topic, partition, [json.dumps(each) for each in headers])

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        del key  # it would be a header
        await self._enqueue(topic, partition, ['{"n": 1e5000}'])

    async def _enqueue(self, topic: str, partition: int, headers: Sequence[str]) -> None:
        log = Log(self.dsn, topic)
        async with log.connected() as con, con.transaction():
            rows = await con.fetch(
                f"INSERT INTO {log.sql}.job (queue, key, payload, headers) "
                "SELECT $1, $2, '{}', u::jsonb FROM unnest($3::text[]) AS u RETURNING place",
                topic,
                f"lane {partition}",
                list(headers),
            )
            # before the commit: afterwards they may be claimed
            self.topics[topic].places[partition] += sorted(row["place"] for row in rows)

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        log, places = Log(self.dsn, topic), self.topics[topic].places
        async with log.connected() as con:
            rows = await con.fetch(f"SELECT place FROM {log.sql}.job")
        left = {row["place"] for row in rows}
        settled = {lane: sum(each not in left for each in them) for lane, them in places.items()}
        return {TopicPartition(topic, lane): Position(n) for lane, n in settled.items() if n}

    async def lose(self, source: Source) -> None:
        """Let another process hold the leases for a moment."""
        assert isinstance(source, LaneSource)
        log = Log(self.dsn, source.topic.name)
        async with log.connected() as con:
            await con.execute(
                f"UPDATE {log.sql}.lane SET lease = nextval('{log.sql}.job_lease'), "
                "owner = 'another', lease_until = now() WHERE lease IS NOT NULL"
            )
